"""Retries of a failing remote: a limit for all requests and threads of a task, and the waits that a remote asks for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import sleep
from typing import TypeVar

from container.models.errors import RemoteUnreachable

T = TypeVar("T")

SILENCE_SECONDS = 7.0
"""Time without progress after which retries stop, so that users see the error 10 s after the program started."""
_MAX_FAILURES = 50
_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 1.0
SHORT_WAIT_SECONDS = 5.0
"""A remote's wait up to this is one of the delays between retries. Longer waits get a note."""
_MAX_WAIT_SECONDS = 60.0
_MAX_WAITS = 3


class Throttled(RemoteUnreachable):
    """A remote accepts no requests now, and says for how long (429 or 503 with Retry-After)."""

    def __init__(self, message: str, seconds: float, max_waits: int = _MAX_WAITS) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.max_waits = max_waits
        """How often in a row it is worth waiting."""


class ThrottleWaits:
    """The waits of one task for a remote that throttles. Each gets a note."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._count = 0

    def progress(self) -> None:
        """Record that something was received since the last wait."""
        self._count = 0

    def wait(self, error: RemoteUnreachable) -> bool:
        """Wait as long as the remote asks for. Returns False at once if that is too long or was done too often."""
        if not isinstance(error, Throttled) or error.seconds > _MAX_WAIT_SECONDS:
            return False
        if self._count >= error.max_waits:
            return False
        self._count += 1
        self._say(f"note: {error}; waiting")
        sleep(error.seconds)
        return True

    def run(self, what: Callable[[], T]) -> T:
        """Return the result of `what`, which is called again after each wait. Raises its errors."""
        while True:
            try:
                return what()
            except Throttled as error:
                if not self.wait(error):
                    raise


class RetryBudget:
    """A limit for retries, shared by threads. Setting `stop` ends all waits."""

    def __init__(self, seconds: float = 0.0, attempts: int | None = None) -> None:
        """seconds: the time limit without progress, if it is longer than the default.

        attempts: number of attempts at every request, instead of the time limit.
        """
        self._seconds = max(seconds, SILENCE_SECONDS)
        self._attempts = attempts
        self._last = time.monotonic()
        self.stop = threading.Event()

    def progress(self) -> None:
        """Record that something was received."""
        self._last = time.monotonic()

    def run(self, request: Callable[[], T], received: Callable[[], int] = lambda: 0) -> T:
        """Return the result of `request`, which is called again after RemoteUnreachable while the limit allows it.

        received: returns the bytes received so far, which `request` resumes after.
        Raises the errors of `request`; Throttled says how often it is worth waiting.
        """
        failures, most = 0, received()
        while True:
            began = time.monotonic()
            try:
                result = request()
            except RemoteUnreachable as error:
                if (now := received()) > most:  # the time of a transfer does not predict that of a failure
                    began, failures, most = time.monotonic(), 0, now
                failures += 1
                seconds = 0.0
                if isinstance(error, Throttled):
                    seconds, error.max_waits = error.seconds, self._waits_left(failures)
                if not self.wait_for_retry(began, failures, seconds):
                    raise
            else:
                self.progress()
                return result

    def wait_for_retry(self, began: float, failures: int, retry_after: float = 0.0) -> bool:
        """Return whether to retry after the `failures`-th failure of an attempt begun at `began` (`time.monotonic`).

        Waits before it returns True, longer after each failure, and at least `retry_after` seconds. Returns False if
        another attempt of the same duration would exceed the limit, or if `retry_after` is long.
        """
        delay = min(_MAX_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** min(failures - 1, 10))
        delay = max(delay * random.uniform(0.5, 1), retry_after)
        if retry_after > SHORT_WAIT_SECONDS or not self._allows(began, failures, delay):
            return False
        return not self.stop.wait(delay)

    def _allows(self, began: float, failures: int, delay: float) -> bool:
        if self._attempts is not None:
            return failures < self._attempts
        now = time.monotonic()
        return failures < _MAX_FAILURES and (now - self._last) + delay + (now - began) <= self._seconds

    def _waits_left(self, failures: int) -> int:
        """Return how often it is worth waiting for a remote that throttles, after so many failures."""
        return _MAX_WAITS if self._attempts is None else max(0, self._attempts - failures)


def seconds_for_attempts(timeout: float) -> float:
    """Return a time limit that leaves room for two attempts that take `timeout` seconds each."""
    return 2 * timeout + _MAX_DELAY_SECONDS


def retry_after_seconds(headers: Mapping[str, str]) -> float:
    """Return how long a response asks to wait (Retry-After: seconds or a date); 0 if it does not.

    headers: with names in lower case, or independent of the case.
    """
    text = str(headers.get("retry-after", "")).strip()
    if text.isdecimal():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    aware = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())
