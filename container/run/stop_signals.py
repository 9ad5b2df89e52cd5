"""Wait for SIGTERM, SIGINT and SIGHUP. SIGCHLD ends a wait, too."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from types import FrameType
from typing import Any, Self


class StopRequested(BaseException):
    """A stop signal before anything is served. Not an `Exception`, which boto3 would treat as a failed request."""


class StopSignals:
    """Counts stop signals. A context manager for the main thread.

    Signals within `burst_seconds` count as one: `make` repeats a SIGTERM that its process group has already received.
    """

    def __init__(self, burst_seconds: float = 1.0) -> None:
        self.count = 0
        self._burst_seconds = burst_seconds
        self._last = -math.inf
        self.raising = True
        """Whether a stop signal raises StopRequested. True as long as nothing is served."""
        self._previous: dict[signal.Signals, Any] = {}
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def wait(self, timeout: float) -> None:
        """Wait for a stop signal or the end of a child, at most `timeout` seconds."""
        if select.select([self._read], [], [], max(timeout, 0.0))[0]:
            os.read(self._read, 4096)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last < self._burst_seconds:
            return
        self._last = now
        self.count += 1
        if self.raising:
            raise StopRequested

    def __enter__(self) -> Self:
        handlers = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGCHLD: lambda number, frame: None,
        }
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
            handlers[signal.SIGHUP] = self._stop
        self._previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._previous_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)
