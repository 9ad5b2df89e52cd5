"""How far the loading of weights is, as a few lines in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

_LEAST_SECONDS = 5.0
_FACTOR = 1.25
"""A line comes after so many times the seconds of the one before: an hour of loading takes 25 lines."""


class LoadProgress:
    """Logs bytes and rate of one loading."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: seconds."""
        self._clock = clock
        self._total = self._done = 0
        self._started = 0.0
        self._next = _LEAST_SECONDS

    def start(self, total: int) -> None:
        """total: bytes to be read."""
        self._total = total
        self._started = self._clock()

    def add(self, num_bytes: int) -> None:
        """num_bytes: that have been read since the last call."""
        self._done += num_bytes
        seconds = self._clock() - self._started
        if seconds < self._next and self._done < self._total:
            return
        self._next = max(seconds + _LEAST_SECONDS, seconds * _FACTOR)
        logger.info(
            "weights: %.2f of %.2f GB read, %.2f GB/s",
            self._done / 1e9,
            self._total / 1e9,
            self._done / 1e9 / max(seconds, 1e-9),
        )
