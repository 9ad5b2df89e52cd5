"""Where a step's time goes, by part."""

from __future__ import annotations

from collections.abc import Callable


class Stopwatch:
    """Adds up seconds by part between `reset`s. On a GPU, whose work is asynchronous, parts inside the model mean
    the time to enqueue them. One thread; `clock` is `time.perf_counter` but in tests.

    `on_stop` is called whenever a part ends. Attention is a part, so it is called in every layer: by that a long step
    shows that it moves.
    """

    def __init__(self, clock: Callable[[], float], on_stop: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._on_stop = on_stop
        self._started = 0.0
        self.seconds: dict[str, float] = {}

    def start(self) -> None:
        self._started = self._clock()

    def stop(self, part: str) -> None:
        """Add the time since the last `start` or `stop` to `part`, and start the next part."""
        now = self._clock()
        self.add(part, now - self._started)
        self._started = now
        self._on_stop()

    def show_alive(self) -> None:
        """As at the end of a part: what lasts goes on."""
        self._on_stop()

    def now(self) -> float:
        return self._clock()

    def add(self, part: str, seconds: float) -> None:
        """Add seconds measured elsewhere."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def reset(self) -> dict[str, float]:
        """The seconds by part since the last reset."""
        seconds, self.seconds = self.seconds, {}
        return seconds
