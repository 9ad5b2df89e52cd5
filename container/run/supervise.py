"""Supervise the engine and the web server after their start: they become ready, serve, and stop together.

The order of a shutdown is always the same: first the status board, so that new requests are refused and clients get
an error; then the engine; then the web server, which by then has nothing left to send; then whatever remains.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
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
class ShutdownTimes:
    """Time limits of the steps of a shutdown, in seconds. SageMaker kills 30 s after SIGTERM."""

    drain: float = 25.0
    """For running requests; the engine ends the others."""
    engine_end: float = 27.0
    """After this the engine is killed."""
    report_errors: float = 1.5
    """Between the death of the engine and the stop of the web server, which reports it to clients."""
    web_end: float = 2.5
    """After this the web server is killed."""


class Failure(Exception):
    """The server cannot continue. The text is the cause, in one line."""


@dataclass(frozen=True, slots=True)
class Helper:
    """A process that the web server needs beside the engine."""

    child: Child
    board: StatusBoard


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
        times: ShutdownTimes = ShutdownTimes(),
        helpers: Sequence[Helper] = (),
    ) -> None:
        self._engine = engine
        self._web = web
        self._board = board
        self._control = control
        self._signals = signals
        self._say = say
        self._helpers = helpers
        self._times = times
        self._was_ready = False

    def run(self, loading_timeout: float, when_ready: Callable[[], None]) -> int:
        """Wait until the engine is ready, call `when_ready`, serve until a stop. Returns the exit code.

        loading_timeout: seconds until the engine must be ready.
        """
        deadline = time.monotonic() + loading_timeout
        try:
            while any(board.read().state is EngineState.STARTING for board in self._boards()):
                if self._signals.count:
                    return self._stop()
                self._raise_if_broken()
                if time.monotonic() > deadline:
                    raise Failure(
                        f"the engine was not ready within {loading_timeout:g} s (option.model_loading_timeout)"
                    )
            self._raise_if_broken(wait=0.0)
            self._was_ready = True
            when_ready()
            while not self._signals.count:
                self._raise_if_broken()
            return self._stop()
        except Failure as failure:
            return self._fail(str(failure))
        finally:
            self._engine.kill_all()
            self._web.kill_all()
            for helper in self._helpers:
                helper.child.kill_all()

    def _boards(self) -> list[StatusBoard]:
        return [self._board, *(helper.board for helper in self._helpers)]

    def _raise_if_broken(self, wait: float = _POLL_SECONDS) -> None:
        """Wait for a signal, then check both children. Raises Failure."""
        self._signals.wait(wait)
        if os.getpid() == 1:
            reap_adopted({self._engine.pid, self._web.pid, *(helper.child.pid for helper in self._helpers)})
        if self._board.read().state is EngineState.FAILED:
            self._engine.wait(_FAILED_ENGINE_SECONDS)
            raise Failure(f"the engine failed: {self._board.read().reason}")
        for helper in self._helpers:
            if helper.board.read().state is EngineState.FAILED:
                raise Failure(f"the {helper.child.name} failed: {helper.board.read().reason}")
        for child in (self._engine, self._web, *(helper.child for helper in self._helpers)):
            code = child.poll()
            if code is not None:
                raise Failure(cause_of_death(child.name, code, child.last_lines()))

    def _stop(self) -> int:
        """Let running requests finish, then stop. At once after a second signal, or if the engine is too slow."""
        self._board.set_state(EngineState.DRAINING)
        code = 0
        if self._was_ready:
            self._say(f"stopping: running requests have {self._times.drain:g} s to finish")
            code = self._drain()
        self._engine.kill_all()
        self._board.set_state(EngineState.STOPPED)
        if self._signals.count < 2:
            self._end_web()
        if self._signals.count > 1:
            self._say("stopped at once after a second signal")
            return 1
        if code != 0:
            self._say(f"error: {cause_of_death(self._engine.name, code, self._engine.last_lines())}")
            return 1
        self._say("stopped")
        return 0

    def _drain(self) -> int:
        """Returns the engine's exit code; 0 also when it was too slow and still runs."""
        self._control.drain(self._times.drain)
        deadline = time.monotonic() + self._times.engine_end
        while self._engine.poll() is None and self._signals.count < 2:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._say(f"the engine did not stop within {self._times.engine_end:g} s and is killed")
                break
            self._signals.wait(min(remaining, _POLL_SECONDS))
        return self._engine.poll() or 0

    def _fail(self, cause: str) -> int:
        """Report the failure to clients, stop everything, and print the cause."""
        self._board.set_state(EngineState.FAILED, cause)
        self._engine.kill_all()
        if self._web.poll() is None:
            until = time.monotonic() + self._times.report_errors
            while (remaining := until - time.monotonic()) > 0 and self._signals.count == 0:
                self._signals.wait(remaining)
            self._end_web()
        self._say(f"error: the server stops: {cause}")
        return 1

    def _end_web(self) -> None:
        self._web.terminate()
        deadline = time.monotonic() + self._times.web_end
        while self._web.poll() is None and self._signals.count < 2 and time.monotonic() < deadline:
            self._signals.wait(min(_POLL_SECONDS, deadline - time.monotonic()))
        self._web.kill_all()
