"""Policies whose order never changes: each sequence has a rank, the smallest is next, the largest gives way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engines.mpi.scheduler.policies.waiting import WaitingHeap
from engines.mpi.scheduler.sequence import Sequence


class RankedPolicy(WaitingHeap):
    """Who was preempted keeps the rank, and so is next again among equals."""

    def head(self) -> Sequence:
        return self.first()

    def admitted(self, sequence: Sequence) -> None:
        """Nothing: who runs does not change who is next."""

    def computed(self, counts: Mapping[Sequence, int]) -> None:
        """Nothing, likewise."""

    def precedence(self, sequence: Sequence) -> int:
        return self._rank(sequence)[0]

    def victim(self, candidates: Iterable[Sequence]) -> Sequence:
        return max(candidates, key=self._rank)
