"""What a prefill mode decides: whose tokens are in the next step."""

from __future__ import annotations

from typing import Protocol

from engines.core import SchedulerSettings
from engines.mpi.scheduler.running_set import RunningSet
from engines.mpi.scheduler.step import StepDraft


class PrefillMode(Protocol):
    """May keep state from step to step."""

    def plan(self, running: RunningSet, settings: SchedulerSettings, draft: StepDraft, now: float) -> None:
        """Fill the draft, with sequences that run and with waiting ones that are let in."""
