"""Measurement of the time of a step, by part."""

from __future__ import annotations

from collections.abc import Callable


class Stopwatch:
    """Sums of seconds by part between two `reset`s. One thread; `clock` is `time.perf_counter` except in tests.

    A GPU is asynchronous: the time of a part inside the model is the time to enqueue it. `show_alive` is called
    whenever a part ends. Attention is a part, so every layer of a long step shows that the rank is alive.
    """

    def __init__(self, clock: Callable[[], float], show_alive: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self.show_alive = show_alive
        self._started = 0.0
        self.seconds: dict[str, float] = {}

    def start(self) -> None:
        self._started = self._clock()

    def stop(self, part: str) -> None:
        """Add the time since the last `start` or `stop` to `part`, and start the next part."""
        now = self._clock()
        self.add(part, now - self._started)
        self._started = now
        self.show_alive()

    def now(self) -> float:
        return self._clock()

    def add(self, part: str, seconds: float) -> None:
        """Add seconds measured elsewhere."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def reset(self) -> dict[str, float]:
        """Return the seconds by part since the last reset, and start again at zero."""
        seconds, self.seconds = self.seconds, {}
        return seconds
