"""By the requests' own `priority`, smaller first; equals by arrival."""

from __future__ import annotations

from engines.mpi.scheduler.policies.ranked import RankedPolicy
from engines.mpi.scheduler.policies.waiting import Rank
from engines.mpi.scheduler.sequence import Sequence


def _rank(sequence: Sequence) -> Rank:
    return sequence.request.priority, sequence.number


class Priority(RankedPolicy):
    """Strict: as long as somebody of a smaller value waits, nobody of a larger one is admitted; likewise where a step
    cannot hold all that run. Those of equal priority take turns."""

    def __init__(self) -> None:
        super().__init__(_rank)
