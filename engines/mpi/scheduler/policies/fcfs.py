"""First come, first served."""

from __future__ import annotations

from engines.mpi.scheduler.policies.ranked import RankedPolicy
from engines.mpi.scheduler.policies.waiting import Rank
from engines.mpi.scheduler.sequence import Sequence


def _rank(sequence: Sequence) -> Rank:
    return 0, sequence.number


class FirstComeFirstServed(RankedPolicy):
    """By arrival. Who was preempted came before everybody who has not run yet.

    Arrival decides who is admitted and who is preempted. Those that run take turns where a step cannot hold them all:
    if the oldest were served alone, an admitted answer would stand still, its blocks held, for as long as theirs take.
    """

    def __init__(self) -> None:
        super().__init__(_rank)
