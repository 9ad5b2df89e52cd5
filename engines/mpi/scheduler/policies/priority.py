"""Order by the `priority` of the requests, smaller first; equal priorities by arrival."""

from __future__ import annotations

from engines.mpi.scheduler.policies.fcfs import FirstComeFirstServed
from engines.mpi.scheduler.sequence import Sequence


class Priority(FirstComeFirstServed):
    """Strict priority: no sequence is admitted while one with a smaller value waits. The same order holds for a step
    that cannot hold all running sequences; there, equal priorities take turns."""

    def rank(self, sequence: Sequence) -> tuple[int, int]:
        return sequence.request.priority, sequence.number
