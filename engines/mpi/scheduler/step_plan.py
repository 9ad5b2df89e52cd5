"""What rank 0 has all ranks compute: plain numbers, and of what the ranks know already only what is new.

Each running sequence has a *row*. Ranks keep one thing for it, its block table (`block_tables.py`); a plan brings the
entries that were added since the last one, and names the tokens to be computed by row and position. So a step of
decodes costs a handful of numbers a sequence, however long it is, and computing a part of a step again is harmless.
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
"""These tokens reach the sequence's last, whose logits give the next."""
WANT_PROMPT_LOGPROBS = 2
"""How likely each token made the prompt's next; may be added to `WANT_LOGITS`."""


UNKNOWN_TOKEN = -1
"""As a token id: the one that the device sampled for this row last. Rank 0 plans a step before it knows the tokens of
the step before."""


class PlanKind(IntEnum):
    STEP = 0
    BEAT = 1
    """Compute nothing; show that every rank is alive."""
    STOP = 2


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step of all ranks. All numbers fit 32 bits."""

    kind: PlanKind
    rows: Sequence[int] = ()
    """[num_seqs]: which sequences, each once."""
    starts: Sequence[int] = ()
    """[num_seqs]: position of the first token to be computed."""
    query_lens: Sequence[int] = ()
    """[num_seqs]: how many tokens, at least 1."""
    wants: Sequence[int] = ()
    """[num_seqs]: a sum of `WANT_*`."""
    token_ids: Sequence[int] = ()
    """[sum of query_lens]: the tokens, sequence by sequence; `UNKNOWN_TOKEN` stands for one that only devices know."""
    table_updates: Sequence[int] = ()
    """Groups of: row, index of the first entry, number of entries, then these entries (blocks)."""
    copies: Sequence[int] = ()
    """Pairs of blocks: source, destination; copied before the step, in order."""

    @property
    def num_sequences(self) -> int:
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        """Sequences whose next token is wanted."""
        return sum(want & WANT_LOGITS for want in self.wants)

    @property
    def scored_lens(self) -> list[int]:
        """Tokens of each sequence whose prompt's log-probabilities are wanted."""
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
        """A step of sequences that nobody asked for: rows 0, 1, ... with these block tables, of each the last
        `query_lens[i]` of `ends[i]` tokens."""
        updates: list[int] = []
        for row, table in enumerate(tables):
            updates += (row, 0, len(table), *table)
        starts = [end - count for end, count in zip(ends, query_lens, strict=True)]
        token_ids = [0] * sum(query_lens)
        return cls(PlanKind.STEP, range(len(starts)), starts, query_lens, wants, token_ids, updates)

    def part(self, first: int, last: int) -> StepPlan:
        """Sequences [first, last) alone, without what changes the ranks' state: that was done by the whole plan."""
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
