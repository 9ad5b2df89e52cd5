"""The time limit of a request."""

from __future__ import annotations

from dataclasses import dataclass

from engines.errors import DeadlineExceeded


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A limit on everything that a request takes, including calls of a user's formatters."""

    start: float
    """Start of the time, from `time.monotonic`."""
    seconds: float
    name: str = "option.predict_timeout"
    """The option or field that sets the limit, for error messages."""

    @property
    def deadline(self) -> float:
        return self.start + self.seconds

    def exceeded(self, progress: str) -> DeadlineExceeded:
        """Return the error of a request that takes too long. progress: how far it is."""
        return DeadlineExceeded(f"the request took longer than {self.seconds:g} s ({self.name}); {progress}")
