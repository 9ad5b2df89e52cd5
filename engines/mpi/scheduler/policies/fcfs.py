"""First come, first served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from engines.mpi.scheduler.sequence import Sequence

_SLACK = 64
"""Entries of sequences that have left, beyond as many as wait, before the heap is made anew."""


class FirstComeFirstServed:
    """By arrival. A preempted sequence came before all that have not run yet.

    Arrival decides who is admitted and who is preempted. Those that run take turns where a step cannot hold them all:
    if the oldest were served alone, an admitted answer would stand still, its blocks held, for as long as theirs take.

    A binary heap: who leaves from the middle stays in it as a stale entry until that comes to the top. Adding costs
    O(log waiting); removing and `head`, spread over all calls, too.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._by_number: dict[int, Sequence] = {}

    def rank(self, sequence: Sequence) -> tuple[int, int]:
        """Smaller is earlier; the second is its `number`, so that no two are equal. Stays the same while it waits."""
        return 0, sequence.number

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_number.values())

    def add(self, sequence: Sequence) -> None:
        """Raises ValueError when one of its number is there already."""
        if sequence.number in self._by_number:
            raise ValueError(f"sequence {sequence.id!r}: number {sequence.number} waits already")
        self._by_number[sequence.number] = sequence
        heappush(self._heap, self.rank(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Raises KeyError when it does not wait."""
        if self._by_number.get(sequence.number) is not sequence:
            raise KeyError(f"sequence {sequence.id!r} does not wait")
        del self._by_number[sequence.number]
        if len(self._heap) > 2 * len(self._by_number) + _SLACK:
            self._heap = [self.rank(one) for one in self._by_number.values()]
            heapify(self._heap)

    def head(self) -> Sequence:
        """Raises IndexError when nobody waits."""
        while True:
            sequence = self._by_number.get(self._heap[0][1])
            if sequence is not None:
                return sequence
            heappop(self._heap)

    def admitted(self, sequence: Sequence) -> None:
        """Nothing: who runs does not change who is next."""

    def computed(self, counts: Mapping[Sequence, int]) -> None:
        """Nothing, likewise."""

    def precedence(self, sequence: Sequence) -> int:
        return self.rank(sequence)[0]

    def victim(self, candidates: Iterable[Sequence]) -> Sequence:
        return max(candidates, key=self.rank)
