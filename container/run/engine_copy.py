"""One copy of the model: its engine, which is restarted when it ends, and the connection to the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from container.run.control import EngineControl
from container.run.processes import Child
from engines.health import EngineState, StatusBoard

_FAILED_ENGINE_SECONDS = 2.0
"""Time for an engine that has reported its failure to end by itself."""


@dataclass(frozen=True, slots=True)
class RestartRule:
    """Rules for restarting an engine that has ended."""

    max_deaths: int = 3
    """Number of consecutive deaths after which the engine is not restarted."""
    delay: float = 1.0
    """Seconds until the first restart; doubled for each further consecutive death."""
    long_service: float = 60.0
    """Seconds of service after which the count of consecutive deaths is reset."""
    max_stalled_checks: int = 300
    """Number of consecutive checks without progress after which a ready engine is replaced, about 60 s. The limit is
    not a time, because no checks happen while a container is paused."""


class EngineCopy:
    """An engine and its restarts. Used by the main thread only."""

    def __init__(
        self,
        name: str,
        start: Callable[[], tuple[Child, StatusBoard]],
        control: EngineControl,
        rule: RestartRule = RestartRule(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """name: the copy's name in messages; start: starts an engine with a new status board."""
        self.name = name
        self.control = control
        self._start = start
        self._rule = rule
        self._clock = clock
        self._started_at = clock()
        self._ready_at: float | None = None
        self._restart_at: float | None = None
        self._deaths = 0
        self._stalled_checks = 0
        self.child, self.board = start()

    @property
    def alive(self) -> bool:
        """True unless the engine has ended and its restart is scheduled."""
        return self._restart_at is None

    @property
    def was_ready(self) -> bool:
        """Whether the engine has become ready since its start."""
        return self._ready_at is not None

    @property
    def may_have_requests(self) -> bool:
        """Whether the engine has become ready, even if `poll_ready` has not reported it yet."""
        return self.was_ready or self.board.read().state is EngineState.READY

    def failure(self, loading_timeout: float) -> str | None:
        """Return the cause in one line if the engine has failed, has ended, or takes too long to load; else None."""
        if not self.alive:
            return None
        health = self.board.read()
        if health.state is EngineState.FAILED:
            self.child.wait(_FAILED_ENGINE_SECONDS)
            return f"{self.name} failed: {self.board.read().reason}"
        if (cause := self.child.death()) is not None:
            return cause
        loads = not self.was_ready and health.state is not EngineState.READY
        if loads and self._clock() - self._started_at > loading_timeout:
            return f"{self.name} was not ready within {loading_timeout:g} s (option.model_loading_timeout)"
        return None

    def stuck(self) -> str | None:
        """Return the cause in one line if a ready engine makes no more progress; else None. Each call is one check."""
        health = self.board.read()
        hangs = self.alive and health.state is EngineState.READY and not health.ready
        self._stalled_checks = self._stalled_checks + 1 if hangs else 0
        if self._stalled_checks < self._rule.max_stalled_checks:
            return None
        return f"{self.name} made no progress for {health.heartbeat_age:.0f} s"

    def schedule_restart(self, cause: str) -> float | None:
        """Kill a failed engine and schedule its restart. Returns seconds until then; None if it has died too often."""
        self.child.kill_all()
        self.board.set_state(EngineState.FAILED, cause)
        now, rule = self._clock(), self._rule
        if self._ready_at is not None and now - self._ready_at >= rule.long_service:
            self._deaths = 0
        self._deaths += 1
        self._ready_at = None
        self._stalled_checks = 0
        if self._deaths >= rule.max_deaths:
            return None
        delay: float = rule.delay * 2 ** (self._deaths - 1)
        self._restart_at = now + delay
        return delay

    def poll_ready(self) -> bool:
        """Restart the engine if a restart is due. Returns whether the engine has become ready since the last call.

        Raises: OSError: the engine cannot be started. It counts as started until `schedule_restart`.
        """
        now = self._clock()
        if self._restart_at is not None:
            if now >= self._restart_at:
                self._restart_at, self._started_at = None, now
                self.child, self.board = self._start()
            return False
        if self.was_ready or self.board.read().state is not EngineState.READY:
            return False
        self._ready_at = now
        return True

    def drain(self, seconds: float) -> None:
        """Refuse new requests, and give running ones `seconds` to finish. Does not wait."""
        if self.alive:  # otherwise the board has the cause, which clients may not have read yet
            self.board.set_state(EngineState.DRAINING)
        self.control.drain(seconds)

    def poll_end(self) -> bool:
        """Return whether the engine has ended. If so, report it on the board, so that its clients do not wait."""
        code = self.child.poll()
        if code is None:
            return False
        self.board.set_state(EngineState.FAILED if code else EngineState.STOPPED, self.board.read().reason)
        return True

    def stop(self) -> None:
        """Kill the engine. Its board changes last, because the engine writes to it, too."""
        self.child.kill_all()
        self.board.set_state(EngineState.STOPPED)
