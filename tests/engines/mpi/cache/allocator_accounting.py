"""Naive accounting of a pool of blocks: the holders of each block, reservations, and the contents of each slot."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engines.mpi.scheduler.sequence import Sequence

TENANTS = ("", "ann", "bob")


class Violation(Exception):
    """An error of an allocator."""


def require(condition: bool, text: str) -> None:
    if not condition:
        raise Violation(text)


@dataclass
class Accounting:
    num_blocks: int
    block_size: int
    slots: list[int | None] = field(init=False)
    holders: Counter[int] = field(default_factory=Counter)
    """Number of sequences that hold each block."""
    tables: dict[Sequence, list[int]] = field(default_factory=dict)
    reserved: set[Sequence] = field(default_factory=set)
    marks: dict[Sequence, list[int]] = field(default_factory=dict)
    """Expected slot contents of each sequence, running or waiting: one mark per token."""

    def __post_init__(self) -> None:
        self.slots = [None] * (self.num_blocks * self.block_size)

    @property
    def num_available(self) -> int:
        return self.num_blocks - len(self.holders)

    def due(self, sequence: Sequence) -> int:
        """Return how many reserved blocks the sequence has not taken yet."""
        if sequence not in self.reserved:
            return 0
        return max(self.pages(sequence.max_num_tokens - 1) - len(self.tables[sequence]), 0)

    @property
    def room(self) -> int:
        return self.num_available - sum(map(self.due, self.reserved))

    def pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def slot(self, table: list[int], position: int) -> int:
        return table[position // self.block_size] * self.block_size + position % self.block_size

    def mark(self, sequence: Sequence) -> None:
        """Add marks for the new tokens of the sequence."""
        marks = self.marks.setdefault(sequence, [])
        for token in sequence.token_ids[len(marks) :]:
            before = marks[-1] if marks else -1 - TENANTS.index(sequence.request.tenant)
            marks.append(hash((before, token)))

    def set_table(self, sequence: Sequence, table: list[int]) -> None:
        self.holders.update(table)
        for block in self.tables.pop(sequence, []):
            self.holders[block] -= 1
            if not self.holders[block]:
                del self.holders[block]
        self.tables[sequence] = list(table)

    def remove(self, sequence: Sequence) -> None:
        self.set_table(sequence, [])
        del self.tables[sequence]
        self.reserved.discard(sequence)

    def check_content(self, sequence: Sequence, what: str) -> None:
        table, marks = self.tables[sequence], self.marks[sequence]
        for position in range(sequence.num_computed_tokens):
            if self.slots[self.slot(table, position)] != marks[position]:
                raise Violation(f"{what}: token {position} of {sequence.id} is not in its block")
