"""Log the progress of loading weights."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

_MIN_INTERVAL_SECONDS = 5.0
_FACTOR = 1.25
"""Ratio of the times of two consecutive log lines. An hour of loading logs 25 lines."""


class LoadProgress:
    """Logs the bytes and the rate of loading one model."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: returns seconds."""
        self._clock = clock
        self._total = self._done = 0
        self._started = 0.0
        self._next = _MIN_INTERVAL_SECONDS

    def start(self, total: int) -> None:
        """Start the clock. total: bytes to read."""
        self._total = total
        self._started = self._clock()

    def add(self, num_bytes: int) -> None:
        """Count bytes, and log a line if one is due. num_bytes: bytes read since the last call."""
        self._done += num_bytes
        seconds = self._clock() - self._started
        if seconds < self._next and self._done < self._total:
            return
        self._next = max(seconds + _MIN_INTERVAL_SECONDS, seconds * _FACTOR)
        logger.info(
            "weights: %.2f of %.2f GB read, %.2f GB/s",
            self._done / 1e9,
            self._total / 1e9,
            self._done / 1e9 / max(seconds, 1e-9),
        )
