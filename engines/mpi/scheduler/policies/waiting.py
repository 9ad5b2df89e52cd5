"""Waiting sequences in an order that does not change while they wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from engines.mpi.scheduler.sequence import Sequence

Rank = tuple[int, int]
"""Smaller is earlier; the second is the sequence's `number`, so that no two are equal."""

_SLACK = 64
"""Entries of sequences that have left, beyond as many as wait, before the heap is made anew."""


class WaitingHeap:
    """A binary heap. Who leaves from the middle stays in it as a stale entry until that comes to the top.

    Adding costs O(log waiting); removing and `first`, spread over all calls, too.
    """

    def __init__(self, rank: Callable[[Sequence], Rank]) -> None:
        """`rank` must stay the same for a sequence while it waits."""
        self._rank = rank
        self._heap: list[Rank] = []
        self._by_number: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_number.values())

    def add(self, sequence: Sequence) -> None:
        """Raises ValueError when one of its number is there already."""
        if sequence.number in self._by_number:
            raise ValueError(f"sequence {sequence.id!r}: number {sequence.number} waits already")
        self._by_number[sequence.number] = sequence
        heappush(self._heap, self._rank(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Raises KeyError when it does not wait."""
        if self._by_number.get(sequence.number) is not sequence:
            raise KeyError(f"sequence {sequence.id!r} does not wait")
        del self._by_number[sequence.number]
        if len(self._heap) > 2 * len(self._by_number) + _SLACK:
            self._heap = [self._rank(one) for one in self._by_number.values()]
            heapify(self._heap)

    def first(self) -> Sequence:
        """Raises IndexError when nobody waits."""
        heap, by_number = self._heap, self._by_number
        while True:
            sequence = by_number.get(heap[0][1])
            if sequence is not None:
                return sequence
            heappop(heap)
