"""Virtual time, in seconds since the start of a simulation."""

from __future__ import annotations


class VirtualClock:
    """A clock that moves only when its user sets it. Called like `time.monotonic`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance_to(self, moment: float) -> None:
        """Move on to this time; one that has passed changes nothing."""
        if moment > self.now:
            self.now = moment
