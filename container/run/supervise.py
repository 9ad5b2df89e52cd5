"""The life of engine and web server after their start: they become ready, serve, and end together.

The order of an end is always the same: the status board says it first, so that requests are refused and clients
told; then the engine goes; then the web server, which by then has nothing left to say; then whatever remains.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from container.run.cause import cause_of_death
from container.run.control import EngineControl
from container.run.processes import Child, reap_adopted
from container.run.stop_signals import StopSignals
from engines.health import EngineState, StatusBoard

_POLL_SECONDS = 0.2
_FAILED_ENGINE_SECONDS = 2.0
"""How long an engine that has reported its failure may take to end by itself."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that the steps of an end may take. SageMaker kills 30 s after SIGTERM."""

    drain: float = 25.0
    """What the engine is told."""
    engine_end: float = 27.0
    """After this the engine is killed."""
    tell_clients: float = 1.5
    """Between an engine's death and the web server's end."""
    web_end: float = 2.5
    """After this the web server is killed."""


class Failure(Exception):
    """The server cannot go on. The text is the cause, one line."""


class Supervisor:
    """Watches one engine and one web server. `signals` must be counting, no longer raising."""

    def __init__(
        self,
        engine: Child,
        web: Child,
        board: StatusBoard,
        control: EngineControl,
        signals: StopSignals,
        say: Callable[[str], None],
        patience: Patience = Patience(),
    ) -> None:
        self._engine = engine
        self._web = web
        self._board = board
        self._control = control
        self._signals = signals
        self._say = say
        self._patience = patience
        self._was_ready = False

    def run(self, loading_timeout: float, when_ready: Callable[[], None]) -> int:
        """Wait until the engine is ready, call `when_ready`, serve until the end. Returns the exit code.

        loading_timeout: seconds until the engine must be ready.
        """
        deadline = time.monotonic() + loading_timeout
        try:
            while self._board.read().state is EngineState.STARTING:
                if self._stop_requested():
                    return self._stop()
                self._raise_if_broken()
                if time.monotonic() > deadline:
                    raise Failure(
                        f"the engine was not ready within {loading_timeout:g} s (option.model_loading_timeout)"
                    )
            self._raise_if_broken(wait=0.0)
            self._was_ready = True
            when_ready()
            while not self._stop_requested():
                self._raise_if_broken()
            return self._stop()
        except Failure as failure:
            return self._fail(str(failure))
        finally:
            self._engine.kill_all()
            self._web.kill_all()

    def _stop_requested(self) -> bool:
        return self._signals.count > 0

    def _raise_if_broken(self, wait: float = _POLL_SECONDS) -> None:
        """One look at both children, after waiting for news. Raises `Failure`."""
        self._signals.wait(wait)
        if os.getpid() == 1:
            reap_adopted({self._engine.pid, self._web.pid})
        if self._board.read().state is EngineState.FAILED:
            self._engine.wait(_FAILED_ENGINE_SECONDS)
            raise Failure(f"the engine failed: {self._board.read().reason}")
        for child in (self._engine, self._web):
            code = child.poll()
            if code is not None:
                raise Failure(cause_of_death(child.name, code, child.last_lines()))

    def _stop(self) -> int:
        """SIGTERM: let running requests end, then go. A second signal, or an engine too slow, ends it at once."""
        self._board.set_state(EngineState.DRAINING)
        code = 0
        if self._was_ready:
            self._say(f"stopping: running requests have {self._patience.drain:g} s to end")
            code = self._drain()
        self._engine.kill_all()
        self._board.set_state(EngineState.STOPPED)
        if self._signals.count < 2:
            self._end_web()
        if self._signals.count > 1:
            self._say("stopped at once, at a second signal")
            return 1
        if code != 0:
            self._say(f"error: {cause_of_death(self._engine.name, code, self._engine.last_lines())}")
            return 1
        self._say("stopped")
        return 0

    def _drain(self) -> int:
        """Returns the engine's exit code; 0 too when it was too slow and is still there."""
        self._control.drain(self._patience.drain)
        deadline = time.monotonic() + self._patience.engine_end
        while self._engine.poll() is None and self._signals.count < 2:
            left = deadline - time.monotonic()
            if left <= 0:
                self._say(f"the engine did not end within {self._patience.engine_end:g} s and is killed")
                break
            self._signals.wait(min(left, _POLL_SECONDS))
        return self._engine.poll() or 0

    def _fail(self, cause: str) -> int:
        """Something broke: tell the clients, end everything, say why."""
        self._board.set_state(EngineState.FAILED, cause)
        self._engine.kill_all()
        if self._web.poll() is None:
            told = time.monotonic() + self._patience.tell_clients
            while (left := told - time.monotonic()) > 0 and self._signals.count == 0:
                self._signals.wait(left)
            self._end_web()
        self._say(f"error: the server ends: {cause}")
        return 1

    def _end_web(self) -> None:
        self._web.terminate()
        deadline = time.monotonic() + self._patience.web_end
        while self._web.poll() is None and self._signals.count < 2 and time.monotonic() < deadline:
            self._signals.wait(min(_POLL_SECONDS, deadline - time.monotonic()))
        self._web.kill_all()
