"""First come, first served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from engines.mpi.policies.waiting import Rank, WaitingHeap
from engines.mpi.sequence import Sequence

_number = attrgetter("number")


def _rank(sequence: Sequence) -> Rank:
    return 0, sequence.number


class FirstComeFirstServed:
    """By arrival. Who was preempted came before everybody who has not run yet, and so is next again."""

    def __init__(self) -> None:
        self._waiting = WaitingHeap(_rank)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def add(self, sequence: Sequence) -> None:
        self._waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)

    def head(self) -> Sequence:
        return self._waiting.first()

    def admitted(self, sequence: Sequence) -> None:
        """Nothing, see below."""

    def computed(self, counts: Mapping[Sequence, int]) -> None:
        """Nothing: the order depends on arrivals alone."""

    def victim(self, candidates: Iterable[Sequence]) -> Sequence:
        """The latest."""
        return max(candidates, key=_number)
