"""One of several models: its state, and the server that runs it."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import monotonic

from container.run.local_server import LocalServer

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0
"""Back-off after a failure, in seconds; doubled for each consecutive failure."""
_LONG_SERVICE = 60.0
"""Seconds of service after which the count of consecutive failures is reset."""


class ModelState(Enum):
    """State of a model's server."""

    DOWN = "down"
    """No server: the model is not loaded yet, was unloaded, or its server failed."""
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    """The server finishes its requests, then exits."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Predicted memory of a loaded model, and settings for its server."""

    host: int
    """Bytes of main memory."""
    gpu: int = 0
    """Bytes of each GPU."""
    kv_cache_gb: str = ""
    """`option.kv_cache_gb` as resolved for the free memory; empty if the engine decides."""


@dataclass(slots=True)
class ServedModel:
    """A model and its server. Only `ModelManager` changes it, under the manager's lock."""

    name: str
    folder: Path
    state: ModelState = ModelState.DOWN
    server: LocalServer | None = None
    need: MemoryNeed | None = None
    """Predicted memory; None while the model takes none."""
    in_flight: int = 0
    """Requests that were forwarded and are not answered yet."""
    last_used: float = -math.inf
    failure: str = ""
    """Why the server failed the last time."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set to abort loading."""
    retry_at: float = -math.inf
    """Monotonic time before which the model is not started again."""
    _failures: int = 0
    _ready_at: float = -math.inf

    @property
    def pid(self) -> int | None:
        return self.server.pid if self.server is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether the model serves, so that it has allocated all its GPU memory."""
        return self.state is ModelState.READY

    @property
    def may_start(self) -> bool:
        """Whether the back-off after the last failure is over."""
        return monotonic() >= self.retry_at

    @property
    def rank_of_use(self) -> tuple[bool, float]:
        """Sort key for unloading: idle models first, then the least recently used."""
        return self.in_flight > 0, self.last_used

    def begin_request(self) -> None:
        """Count a new request."""
        self.in_flight += 1
        self.last_used = monotonic()

    def mark_loading(self) -> None:
        """Enter the state LOADING."""
        self.state = ModelState.LOADING
        self.stopping.clear()

    def mark_ready(self) -> None:
        """Enter the state READY."""
        self.state = ModelState.READY
        self._ready_at = self.last_used = monotonic()
        self.failure = ""

    def mark_down(self, failure: str = "") -> None:
        """Enter the state DOWN. failure: the reason, if the server failed; delays the next start."""
        now = monotonic()
        if self.state is ModelState.READY and now - self._ready_at >= _LONG_SERVICE:
            self._failures = 0
        self.state, self.server, self.need = ModelState.DOWN, None, None
        if failure:
            self.failure = failure
            self.retry_at = now + min(_LONGEST_DELAY, _FIRST_DELAY * 2**self._failures)
            self._failures = min(self._failures + 1, 10)
