"""The plan of one step, as rank 0 sends it to all ranks: plain numbers, and only what has changed since the last plan.

Each running sequence has a *row*. Ranks keep only its block table (`block_tables.py`). A plan brings the entries that
were added since the last plan, and names the tokens to compute by row and position. So a decode costs a handful of
numbers per sequence, regardless of its length, and recomputing a part of a step is harmless.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

WANT_NOTHING = 0
WANT_LOGITS = 1
"""The tokens include the sequence's last one, whose logits give the next token."""
WANT_PROMPT_LOGPROBS = 2
"""The log-probability of the next prompt token is wanted for each token; may be added to `WANT_LOGITS`."""
WANT_LARGEST_ONLY = 4
"""Of these logits only the largest one is needed; may be added to `WANT_LOGITS`."""

UNKNOWN_TOKEN = -1
"""Token id that stands for the token that the device sampled last for this row. Rank 0 plans a step before it knows
the tokens of the previous step."""


class PlanKind(IntEnum):
    STEP = 0
    BEAT = 1
    """Heartbeat: compute nothing, and show that every rank is alive."""
    STOP = 2


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, the same for all ranks. All numbers fit into 32 bits."""

    kind: PlanKind
    rows: Sequence[int] = ()
    """[num_seqs]: row of each sequence; no row occurs twice."""
    starts: Sequence[int] = ()
    """[num_seqs]: position of the first token to compute."""
    query_lens: Sequence[int] = ()
    """[num_seqs]: number of tokens to compute, at least 1."""
    wants: Sequence[int] = ()
    """[num_seqs]: sum of `WANT_*` flags."""
    token_ids: Sequence[int] = ()
    """[sum of query_lens]: tokens, sequence by sequence. `UNKNOWN_TOKEN` stands for a token that only the devices
    know."""
    table_updates: Sequence[int] = ()
    """Groups of: row, index of the first entry, number of entries, then the entries (blocks)."""
    copies: Sequence[int] = ()
    """Pairs of blocks: source, destination. Copied in order, before the step."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        """Number of sequences whose next token is wanted."""
        return sum(want & WANT_LOGITS for want in self.wants)

    @property
    def scored_lens(self) -> list[int]:
        """Number of tokens of each sequence whose prompt log-probabilities are wanted."""
        return [
            count
            for count, want in zip(self.query_lens, self.wants, strict=True)
            if want & WANT_PROMPT_LOGPROBS
        ]

    def encode(self) -> bytes:
        lists = (
            self.rows,
            self.starts,
            self.query_lens,
            self.wants,
            self.token_ids,
            self.table_updates,
            self.copies,
        )
        lengths = [*map(len, lists)]
        return struct.pack(f"{8 + sum(lengths)}i", self.kind, *lengths, *chain.from_iterable(lists))

    @classmethod
    def decode(cls, data: bytes) -> StepPlan:
        numbers = array("i")
        numbers.frombytes(data)
        lists = []
        at = 8
        for length in numbers[1:at]:
            lists.append(numbers[at : at + length])
            at += length
        return cls(PlanKind(numbers[0]), *lists)

    @classmethod
    def of_rows(
        cls,
        ends: Sequence[int],
        query_lens: Sequence[int],
        wants: Sequence[int],
        tables: Sequence[Sequence[int]],
    ) -> StepPlan:
        """Build a step for warm-up and measurement: rows 0, 1, ... with these block tables. Row i has `ends[i]`
        tokens, and the step computes the last `query_lens[i]` of them."""
        updates: list[int] = []
        for row, table in enumerate(tables):
            updates += (row, 0, len(table), *table)
        starts = [end - count for end, count in zip(ends, query_lens, strict=True)]
        token_ids = [0] * sum(query_lens)
        return cls(PlanKind.STEP, range(len(starts)), starts, query_lens, wants, token_ids, updates)

    def part(self, first: int, last: int) -> StepPlan:
        """Return the plan for sequences [first, last) only, without table updates and copies: the whole plan has
        applied them."""
        token_first = sum(self.query_lens[:first])
        token_last = token_first + sum(self.query_lens[first:last])
        return StepPlan(
            self.kind,
            self.rows[first:last],
            self.starts[first:last],
            self.query_lens[first:last],
            self.wants[first:last],
            self.token_ids[token_first:token_last],
        )
