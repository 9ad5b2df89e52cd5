"""A KV cache that runs plans and detects every wrong block table, slot and copy."""

from __future__ import annotations

from engines.core import PromptLogprob, SampledToken
from engines.mpi.cache.window import Window
from engines.mpi.scheduler.step import Step
from engines.mpi.scheduler.step_plan import WANT_LOGITS, WANT_PROMPT_LOGPROBS, StepPlan
from tests.engines.mpi.scheduler.property_requests import CELL_BYTES, Subject

_POISON = b"\xff" * CELL_BYTES


class Violation(Exception):
    """An invariant is broken."""


class Broken(Exception):
    """A simulated failure of the model in a step."""


class CheckedCache:
    """The slots of all ranks, and the block tables that the plans describe.

    Everything that a sequence reads must have been written by the sequence itself, or by another one with the same
    prefix.
    """

    def __init__(self, num_blocks: int, block_size: int, window: Window | None = None) -> None:
        self._window = window
        self._page_bytes = block_size * CELL_BYTES
        self._block_size = block_size
        self._memory = bytearray(num_blocks * self._page_bytes)
        self._tables: dict[int, list[int]] = {}
        self.written: set[int] = set()
        """Blocks written by the last computation: a step, or a part of one that failed. Before the next part is
        computed, a sequence may end and hand its pages to siblings."""

    def apply(self, plan: StepPlan) -> None:
        """Apply the copies and block-table updates of a plan."""
        memory, size = self._memory, self._page_bytes
        copies = plan.copies
        for i in range(0, len(copies), 2):
            source, destination = copies[i] * size, copies[i + 1] * size
            memory[destination : destination + size] = memory[source : source + size]
        updates, at = plan.table_updates, 0
        while at < len(updates):
            row, first, count = updates[at : at + 3]
            table = self._tables.setdefault(row, [])
            if first > len(table) or count < 1:
                raise Violation(
                    f"row {row}: update of {count} entries at {first}, but the table has {len(table)}"
                )
            table[first:] = updates[at + 3 : at + 3 + count]
            at += 3 + count

    def compute(self, step: Step, subjects: list[Subject]) -> list[SampledToken]:
        """Write the tokens of the step, then read all tokens of its sequences.

        Raises:
            Broken: the step computes a position that is set to fail.
        """
        plan = step.plan
        rows = list(zip(plan.rows, plan.starts, plan.query_lens, plan.wants, subjects, strict=True))
        for row, start, count, _, subject in rows:
            if start + count > subject.fails_from:
                self._put(row, start, _POISON * count)
                raise Broken
        self._write(step, rows)
        sampled = []
        for row, start, count, want, subject in rows:
            stop = start + count
            healthy = self._read(row, start, stop, subject)
            if want & WANT_LOGITS:
                sampled.append(
                    SampledToken(subject.tokens[stop], finite=True)
                    if healthy
                    else SampledToken(0, finite=False)
                )
        return sampled

    def scores(self, step: Step) -> list[list[PromptLogprob]]:
        """Return prompt log-probabilities. The "log-probability" of each token is its position."""
        return [
            [
                PromptLogprob(float(position))
                for position in range(first + 1, min(last + 1, s.num_prompt_tokens))
            ]
            for s, first, last in step.scored
        ]

    def _write(self, step: Step, rows: list[tuple[int, int, int, int, Subject]]) -> None:
        block_size = self._block_size
        token_ids, at = step.plan.token_ids, 0
        written: list[int] = []
        for (row, start, count, want, subject), sequence in zip(rows, step.sequences, strict=True):
            stop = start + count
            if list(token_ids[at : at + count]) != subject.tokens[start:stop]:
                raise Violation(f"{sequence.id}: wrong tokens for positions {start} to {stop - 1}")
            at += count
            if bool(want & WANT_LOGITS) != (stop == subject.num_tokens):
                raise Violation(f"{sequence.id}: wants {want} at {stop} of {subject.num_tokens} tokens")
            wants_scores = sequence.request.sampling.prompt_logprobs is not None and not subject.num_reported
            if bool(want & WANT_PROMPT_LOGPROBS) != wants_scores:
                raise Violation(f"{sequence.id}: wants {want}, but prompt_logprobs is {wants_scores}")
            table = self._tables.get(row, [])
            last = (stop - 1) // block_size
            if last >= len(table) or table[: last + 1] != sequence.block_table[: last + 1]:
                raise Violation(
                    f"{sequence.id}: the ranks' block table {table} is not {sequence.block_table}"
                )
            written += table[start // block_size : last + 1]
            data = subject.cells[start * CELL_BYTES : stop * CELL_BYTES]
            if stop > subject.non_finite_from:
                num_finite = max(0, subject.non_finite_from - start)
                data = data[: num_finite * CELL_BYTES] + _POISON * (count - num_finite)
            self._put(row, start, data)
        if len(set(written)) != len(written):
            raise Violation(f"two sequences write into one block: {sorted(written)}")
        self.written = set(written)

    def _put(self, row: int, start: int, data: bytes) -> None:
        memory, table, block_size = self._memory, self._tables[row], self._block_size
        for offset in range(0, len(data), CELL_BYTES):
            position = start + offset // CELL_BYTES
            slot = (table[position // block_size] * block_size + position % block_size) * CELL_BYTES
            memory[slot : slot + CELL_BYTES] = data[offset : offset + CELL_BYTES]

    def _first_seen(self, position: int) -> int:
        return 0 if self._window is None else max(0, position + 1 - self._window.num_tokens)

    def _read(self, row: int, start: int, stop: int, subject: Subject) -> bool:
        """Return False when the last token reads poison, which is allowed from `non_finite_from` on."""
        first, last = (self._first_seen(position) * CELL_BYTES for position in (start, stop - 1))
        memory, size = self._memory, self._page_bytes
        pages = self._tables[row][: (stop - 1) // self._block_size + 1]
        history = b"".join([memory[block * size : (block + 1) * size] for block in pages])
        if stop <= subject.non_finite_from:
            if history[first : stop * CELL_BYTES] != subject.cells[first : stop * CELL_BYTES]:
                raise Violation(f"{subject.request.id} does not find its own tokens in {pages} up to {stop}")
            return True
        return _POISON not in history[last : stop * CELL_BYTES]
