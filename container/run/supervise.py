"""Supervise the engine, or several copies of it, and the web server. They become ready, serve, and stop together.

If a single engine ends, the server stops. If one of several copies ends, it is restarted, unless it dies repeatedly.
A shutdown has a fixed order: first the status board, so that new requests are refused and clients get an error; then
the engine; then the web server, which by then has nothing left to send; then all remaining processes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from container.progress import LogLines
from container.run.engine_copy import EngineCopy
from container.run.processes import Child, reap_orphans
from container.run.stop_signals import StopSignals
from engines.copies.settings_lock import settings_lock
from engines.core import SchedulerReply, SettingValue
from engines.errors import Unavailable
from engines.health import EngineState, StatusBoard

_POLL_SECONDS = 0.2
_SETTINGS_SECONDS = 10.0
"""Time limit for reading or changing the scheduler settings of a copy."""


@dataclass(frozen=True, slots=True)
class ShutdownTimes:
    """Time limits of the steps of a shutdown, in seconds. SageMaker kills 30 s after SIGTERM."""

    drain: float = 25.0
    """Time for running requests to finish. After this the engine ends the remaining ones."""
    engine_end: float = 27.0
    """After this the engine is killed."""
    report_errors: float = 1.5
    """Time for the web server to report the engine's death to clients before it is stopped."""
    web_end: float = 2.5
    """Time after the failure or after `engine_end` until the web server is killed."""


class Failure(Exception):
    """The server cannot continue. The message is the cause, in one line."""


@dataclass(frozen=True, slots=True)
class Helper:
    """A process that the web server needs beside the engine."""

    child: Child
    """Its name is a plural."""
    board: StatusBoard


class Supervisor:
    """Supervises the copies of the engine and one web server. `signals` must be counting, no longer raising."""

    def __init__(
        self,
        copies: Sequence[EngineCopy],
        web: Child,
        signals: StopSignals,
        say: Callable[[str], None],
        settings_lock_file: Path,
        times: ShutdownTimes = ShutdownTimes(),
        helpers: Sequence[Helper] = (),
    ) -> None:
        self._copies = copies
        self._web = web
        self._signals = signals
        self._say = say
        self._settings_lock_file = settings_lock_file
        self._helpers = helpers
        self._times = times
        self._was_ready = False

    def run(self, loading_timeout: float, when_ready: Callable[[], None]) -> int:
        """Wait until all copies are ready, call `when_ready`, and serve until stopped. Returns the exit code.

        loading_timeout: seconds within which engines and helpers must become ready.
        """
        deadline = time.monotonic() + loading_timeout
        try:
            while any(board.read().state is EngineState.STARTING for board in self._boards()):
                if self._signals.count:
                    return self._stop()
                self._raise_if_broken(loading_timeout)
                for helper in self._helpers:
                    if helper.board.read().state is EngineState.STARTING and time.monotonic() > deadline:
                        raise Failure(
                            f"the {helper.child.name} were not ready within {loading_timeout:g} s"
                            " (option.model_loading_timeout)"
                        )
            self._raise_if_broken(loading_timeout, wait=0.0)
            for copy in self._copies:
                copy.poll_ready()
            self._was_ready = True
            when_ready()
            while not self._signals.count:
                self._raise_if_broken(loading_timeout)
                for copy in self._copies:
                    try:
                        is_ready = copy.poll_ready()
                    except OSError as error:  # no memory for a process, or none for its status board
                        self._replace(copy, f"{copy.name} could not be started: {error}")
                        continue
                    if is_ready:
                        self._restore_settings(copy)
            return self._stop()
        except Failure as failure:
            return self._fail(str(failure))
        finally:
            for copy in self._copies:
                copy.child.kill_all()
            self._web.kill_all()
            for helper in self._helpers:
                helper.child.kill_all()

    def _boards(self) -> list[StatusBoard]:
        return [copy.board for copy in self._copies] + [helper.board for helper in self._helpers]

    def _raise_if_broken(self, loading_timeout: float, wait: float = _POLL_SECONDS) -> None:
        """Wait at most `wait` seconds for a signal, then check all children. Raises Failure."""
        self._signals.wait(wait)
        other_children = [self._web, *(helper.child for helper in self._helpers)]
        if os.getpid() == 1:
            reap_orphans({child.pid for child in [copy.child for copy in self._copies] + other_children})
        for copy in self._copies:
            cause = copy.failure(loading_timeout)
            if cause is None and len(self._copies) > 1:  # the only engine may recover
                cause = copy.stuck()
            if cause is not None:
                self._replace(copy, cause)
        for helper in self._helpers:
            if helper.board.read().state is EngineState.FAILED:
                raise Failure(f"the {helper.child.name} failed: {helper.board.read().reason}")
        for child in other_children:
            if (cause := child.death()) is not None:
                raise Failure(cause)

    def _replace(self, copy: EngineCopy, cause: str) -> None:
        """Schedule the restart of one of several copies. Raises Failure if the copy is not restarted."""
        if not self._was_ready or len(self._copies) == 1:
            raise Failure(cause)
        delay = copy.schedule_restart(cause)
        if delay is None:
            raise Failure(f"{copy.name} keeps failing and is not restarted; last failure: {cause}")
        self._say(f"warning: {cause}; restarting {copy.name} in {delay:g} s; the other copies keep serving")

    def _restore_settings(self, copy: EngineCopy) -> None:
        """Give a restarted copy the settings of the others, then report that it serves again."""
        try:
            with settings_lock(self._settings_lock_file, _SETTINGS_SECONDS, self._wait_for_lock):
                self._share_settings(copy)
        except Unavailable as error:
            self._say(f"warning: {copy.name} keeps the scheduler settings it started with: {error}")
        self._say(f"{copy.name} is serving again")

    def _wait_for_lock(self, seconds: float) -> None:
        self._signals.wait(seconds)
        if self._signals.count:
            raise Unavailable("the server is stopping")

    def _share_settings(self, copy: EngineCopy) -> None:
        """Apply the scheduler settings of the other copies, which may have changed, to a restarted copy.

        Does nothing if the engines have no scheduler.

        Raises: Unavailable: no other copy replies, or the restarted copy does not take the settings.
        """

        def scheduler(target: EngineCopy, changes: Mapping[str, SettingValue]) -> SchedulerReply | None:
            def keep_waiting() -> bool:
                return target.child.poll() is None and not self._signals.count

            return target.control.scheduler(changes, _SETTINGS_SECONDS, keep_waiting)

        others = [other for other in self._copies if other is not copy and other.was_ready]
        state = next(filter(None, (scheduler(other, {}) for other in others)), None)
        if others and state is None:
            raise Unavailable("the other copies did not report their settings in time")
        if state is None or state.settings is None:
            return
        taken = scheduler(copy, asdict(state.settings))
        if taken is None or taken.settings != state.settings:
            raise Unavailable("it did not accept the settings of the other copies in time")

    def _stop(self) -> int:
        """Let running requests finish, then stop. A second signal stops at once; a slow engine is killed."""
        deadline = time.monotonic() + self._times.engine_end + self._times.web_end
        broken = self._drain()
        for copy in self._copies:
            copy.stop()
        if self._signals.count < 2:
            self._end_web(deadline)
        if self._signals.count > 1:
            self._say("stopped immediately on a second signal")
            return 1
        for cause in filter(None, (child.death() for child in broken)):
            self._complain(cause)
        if not broken:
            self._say("stopped")
        return 1 if broken else 0

    def _drain(self) -> list[Child]:
        """Drain the engines that may have requests; kill the others.

        Returns the engines with a nonzero exit code, without those that still run at the time limit.
        """
        deadline = time.monotonic() + self._times.engine_end
        draining = [copy for copy in self._copies if copy.may_have_requests]
        for copy in draining:
            copy.drain(self._times.drain)
        for copy in self._copies:
            if copy not in draining:  # it could become ready during the drain
                copy.stop()
        if draining:
            self._say(f"stopping: running requests have {self._times.drain:g} s to finish")
        running = draining
        while running and self._signals.count < 2:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._say(f"the engine did not stop within {self._times.engine_end:g} s; killing it")
                break
            self._signals.wait(min(remaining, _POLL_SECONDS))
            running = [copy for copy in running if not copy.poll_end()]
        return [copy.child for copy in draining if copy.child.poll()]

    def _fail(self, cause: str) -> int:
        """Report the failure to clients, stop everything, and print the cause."""
        for copy in self._copies:
            copy.board.set_state(EngineState.FAILED, cause)
            copy.child.kill_all()
        for helper in self._helpers:
            helper.board.set_state(EngineState.FAILED, cause)
        if self._web.poll() is None:
            until = time.monotonic() + self._times.report_errors
            while (remaining := until - time.monotonic()) > 0 and self._signals.count == 0:
                self._signals.wait(remaining)
            self._end_web(time.monotonic() + self._times.web_end)
        self._complain(f"shutting down: {cause}")
        return 1

    def _complain(self, cause: str) -> None:
        """Print why the server ends. A parent process reports the last line of stderr as the reason."""
        LogLines(sys.stderr).say(f"error: {cause}")

    def _end_web(self, deadline: float) -> None:
        """Let clients read the responses in flight, until the deadline, in seconds of the monotonic clock."""
        self._web.terminate()
        while self._web.poll() is None and self._signals.count < 2 and time.monotonic() < deadline:
            self._signals.wait(min(_POLL_SECONDS, deadline - time.monotonic()))
        self._web.kill_all()
