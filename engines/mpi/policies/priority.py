"""By the requests' own `priority`, smaller first; equals by arrival."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from engines.mpi.policies.waiting import Rank, WaitingHeap
from engines.mpi.sequence import Sequence


def _rank(sequence: Sequence) -> Rank:
    return sequence.request.priority, sequence.number


class Priority:
    """Strict: as long as somebody of a smaller value waits, nobody of a larger one is admitted."""

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
        """Nothing: the order depends on priorities and arrivals alone."""

    def victim(self, candidates: Iterable[Sequence]) -> Sequence:
        """The latest of the largest value."""
        return max(candidates, key=_rank)
