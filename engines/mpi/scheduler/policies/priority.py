"""By the requests' own `priority`, smaller first; equals by arrival."""

from __future__ import annotations

from engines.mpi.scheduler.policies.fcfs import FirstComeFirstServed
from engines.mpi.scheduler.sequence import Sequence


class Priority(FirstComeFirstServed):
    """Strict: as long as somebody of a smaller value waits, nobody of a larger one is admitted; likewise where a step
    cannot hold all that run. Those of equal priority take turns."""

    def rank(self, sequence: Sequence) -> tuple[int, int]:
        return sequence.request.priority, sequence.number
