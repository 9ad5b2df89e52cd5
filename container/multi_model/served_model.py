"""One model of several: its state, and the server that has it loaded."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import monotonic

from container.multi_model.memory import MemoryNeed
from container.run.local_server import LocalServer

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0
"""Seconds after a failure in which a model is not started again; doubled for each failure in a row."""
_LONG_SERVICE = 60.0
"""Seconds of service after which a failure is the first of a row."""


class ModelState(Enum):
    """What a model's server does."""

    DOWN = "down"
    """There is none: the model is not loaded yet, it was unloaded, or its server failed."""
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    """It finishes its requests, and then ends."""


@dataclass(slots=True)
class ServedModel:
    """A model by its name. Only `ModelManager` changes it, under its lock."""

    name: str
    folder: Path
    state: ModelState = ModelState.DOWN
    server: LocalServer | None = None
    need: MemoryNeed | None = None
    in_flight: int = 0
    """Requests that have been passed on and not been answered."""
    last_used: float = -math.inf
    failure: str = ""
    """Why its server failed the last time."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set to break off its loading."""
    retry_at: float = -math.inf
    """It is not started again before."""
    _failures: int = 0
    _ready_at: float = -math.inf

    @property
    def pid(self) -> int | None:
        return self.server.pid if self.server is not None else None

    @property
    def is_ready(self) -> bool:
        return self.state is ModelState.READY

    @property
    def may_start(self) -> bool:
        """Whether its last failure is long enough ago."""
        return monotonic() >= self.retry_at

    @property
    def rank_of_use(self) -> tuple[bool, float]:
        """Smaller is unloaded sooner: idle models first, then the least recently used."""
        return self.in_flight > 0, self.last_used

    def use(self) -> None:
        """Begin a request."""
        self.in_flight += 1
        self.last_used = monotonic()

    def begin(self) -> None:
        """Start loading."""
        self.state = ModelState.LOADING
        self.stopping.clear()

    def serve(self) -> None:
        """The server is ready."""
        self.state = ModelState.READY
        self._ready_at = self.last_used = monotonic()
        self.failure = ""

    def fall(self, failure: str = "") -> None:
        """There is no server any more. failure: why, if it failed; the next start then waits."""
        now = monotonic()
        if self.state is ModelState.READY and now - self._ready_at >= _LONG_SERVICE:
            self._failures = 0
        self.state, self.server, self.need = ModelState.DOWN, None, None
        if failure:
            self.failure = failure
            self.retry_at = now + min(_LONGEST_DELAY, _FIRST_DELAY * 2**self._failures)
            self._failures = min(self._failures + 1, 10)
