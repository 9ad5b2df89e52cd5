"""Virtual time, in seconds since the start of a simulation."""

from __future__ import annotations


class VirtualClock:
    """A clock that advances only when it is set. Called like `time.monotonic`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance_to(self, moment: float) -> None:
        """Advance to this time. A time in the past is ignored."""
        if moment > self.now:
            self.now = moment
