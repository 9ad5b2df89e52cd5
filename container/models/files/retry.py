"""Retries of a failing remote: one time limit for all requests and threads of a task."""

from __future__ import annotations

import random
import threading
import time

SILENCE_SECONDS = 7.0
"""Time without progress after which retries stop, so that users see the error 10 s after the program started."""
_MAX_FAILURES = 50
_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 1.0


class RetryBudget:
    """A time limit for retries, shared by threads. Setting `stop` ends all waits."""

    def __init__(self) -> None:
        self._seconds = SILENCE_SECONDS
        self._last = time.monotonic()
        self.stop = threading.Event()

    def progress(self) -> None:
        """Record that something was received."""
        self._last = time.monotonic()

    def wait_for_retry(self, began: float, failures: int) -> bool:
        """Return whether to retry after the `failures`-th failure of an attempt begun at `began` (`time.monotonic`).

        Waits before it returns True, longer after each failure. Returns False if another attempt of the same duration
        would exceed the time limit.
        """
        now = time.monotonic()
        delay = min(_MAX_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** min(failures - 1, 10))
        delay *= random.uniform(0.5, 1)
        if failures >= _MAX_FAILURES or (now - self._last) + delay + (now - began) > self._seconds:
            return False
        return not self.stop.wait(delay)
