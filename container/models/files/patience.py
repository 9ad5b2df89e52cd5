"""How long a remote that gives nothing is asked again: the same for every request and thread of one piece of work."""

from __future__ import annotations

import random
import threading
import time

SILENCE_SECONDS = 7.0
"""Without any progress for so long it is given up: what is wrong is said 10 s after the start of the program."""
_MAX_FAILURES = 50
_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 1.0


class Patience:
    """Shared by threads. `stop` ends all waiting."""

    def __init__(self) -> None:
        self._seconds = SILENCE_SECONDS
        self._last = time.monotonic()
        self.stop = threading.Event()

    def progress(self) -> None:
        """Something came."""
        self._last = time.monotonic()

    def again(self, began: float, failures: int) -> bool:
        """Whether to try again after the `failures`-th failure of an attempt begun at `began` (`time.monotonic`).

        Waits before it says yes, a little longer each time. Says no when another attempt that lasts as long as this
        one would end after the time is up.
        """
        now = time.monotonic()
        delay = min(_MAX_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** min(failures - 1, 10)) * random.uniform(
            0.5, 1
        )
        if failures >= _MAX_FAILURES or (now - self._last) + delay + (now - began) > self._seconds:
            return False
        return not self.stop.wait(delay)
