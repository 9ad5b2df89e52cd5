"""First come, first served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from engines.mpi.scheduler.sequence import Sequence

_SLACK = 64
"""Stale heap entries, beyond the number of waiting sequences, that are allowed before the heap is rebuilt."""


class FirstComeFirstServed:
    """Order of arrival. A preempted sequence arrived before all sequences that have not run yet.

    Arrival decides admission and preemption. Running sequences take turns when a step cannot hold them all. If the
    oldest were always served first, other admitted requests would stall, with their blocks held, until it ends.

    A binary heap. A sequence removed from the middle leaves a stale entry in the heap until the entry reaches the top.
    Adding costs O(log waiting); so do removing and `head`, amortized.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._by_number: dict[int, Sequence] = {}

    def rank(self, sequence: Sequence) -> tuple[int, int]:
        """Return the sort key; smaller is earlier. It ends with `number`, so no two are equal. It is constant while
        the sequence waits."""
        return 0, sequence.number

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_number.values())

    def add(self, sequence: Sequence) -> None:
        """Add a waiting sequence. Raises ValueError when a sequence with its number already waits."""
        if sequence.number in self._by_number:
            raise ValueError(f"sequence {sequence.id!r}: number {sequence.number} is already waiting")
        self._by_number[sequence.number] = sequence
        heappush(self._heap, self.rank(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting sequence. Raises KeyError when it does not wait."""
        if self._by_number.get(sequence.number) is not sequence:
            raise KeyError(f"sequence {sequence.id!r} is not waiting")
        del self._by_number[sequence.number]
        if len(self._heap) > 2 * len(self._by_number) + _SLACK:
            self._heap = [self.rank(one) for one in self._by_number.values()]
            heapify(self._heap)

    def head(self) -> Sequence:
        """Return the first waiting sequence. Raises IndexError when none waits."""
        while True:
            sequence = self._by_number.get(self._heap[0][1])
            if sequence is not None:
                return sequence
            heappop(self._heap)

    def record_admission(self, sequence: Sequence) -> None:
        """Do nothing: running sequences do not change the order."""

    def record_computed(self, counts: Mapping[Sequence, int]) -> None:
        """Do nothing: computed tokens do not change the order."""

    def precedence(self, sequence: Sequence) -> int:
        return self.rank(sequence)[0]

    def victim(self, candidates: Iterable[Sequence]) -> Sequence:
        return max(candidates, key=self.rank)
