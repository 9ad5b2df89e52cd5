"""The supervisor with fake copies, step by step: restarts, drains and reasons of a failure."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.run.engine_copy import EngineCopy, RestartRule
from container.run.supervise import Helper, Supervisor
from engines.copies.settings_lock import settings_lock
from engines.health import EngineState, StatusBoard
from tests.container.run.test_engine_copy import FakeChild


class FakeWeb(FakeChild):
    def terminate(self) -> None:
        self.code = 0


class CopiesLab:
    """A supervisor of fake copies. Each wait for a signal runs the next step of a test."""

    def __init__(self, folder: Path, *states: EngineState) -> None:
        """states: the initial state of each copy."""
        self.count = 0
        """Number of stop signals."""
        self.drained: list[str] = []
        """Names of the copies that were told to drain."""
        self.failing_starts: tuple[int, ...] = ()
        """Numbers of the starts that raise an error, from 1."""
        self._folder = folder
        self._starts = 0
        self._steps: Iterator[Callable[[], None]] = iter(())
        self.copies = [self._copy(f"copy{number}", state) for number, state in enumerate(states, 1)]

    def _copy(self, name: str, state: EngineState) -> EngineCopy:
        control: Any = SimpleNamespace(drain=lambda seconds: self.drained.append(name))
        copy = EngineCopy(name, self._start, control, RestartRule(delay=0.0), clock=lambda: 0.0)
        copy.board.set_state(state)
        return copy

    def _start(self) -> tuple[Any, StatusBoard]:
        self._starts += 1
        if self._starts in self.failing_starts:
            raise OSError(errno.ENOSPC, "No space left on device")
        return FakeChild(), StatusBoard.create(self._folder / str(self._starts), 1)

    def run(
        self, *steps: Callable[[], None], loading_timeout: float = 1e9, helpers: Sequence[Helper] = ()
    ) -> int:
        """Run the supervisor until it stops. Return its exit code."""
        self._steps = iter(steps)
        web: Any = FakeWeb()
        signals: Any = self
        lock = self._folder / "lock"
        supervisor = Supervisor(self.copies, web, signals, lambda message: None, lock, helpers=helpers)
        return supervisor.run(loading_timeout, lambda: None)

    def wait(self, timeout: float) -> None:
        """Stand in for the wait of `StopSignals`."""
        step = next(self._steps, None)
        assert step, "a wait after the last step"
        step()

    def terminate(self) -> None:
        self.count += 1

    def end(self, number: int, code: int = 0) -> Callable[[], None]:
        """Return the step in which the engine of a copy ends."""
        return lambda: setattr(self.copies[number - 1].child, "code", code)

    def states(self) -> list[EngineState]:
        return [copy.board.read().state for copy in self.copies]

    def killed(self) -> list[bool]:
        children: list[Any] = [copy.child for copy in self.copies]
        return [child.killed for child in children]


def nothing() -> None:
    """A step in which nothing happens."""


def test_a_copy_that_is_being_restarted_is_killed_before_the_others_drain(tmp_path: Path) -> None:
    lab = CopiesLab(tmp_path, EngineState.READY, EngineState.READY)

    def terminate_while_copy_1_loads() -> None:
        assert lab.states() == [EngineState.STARTING, EngineState.READY]
        lab.terminate()

    def check_drain() -> None:
        assert lab.killed() == [True, False]
        assert lab.states() == [EngineState.STOPPED, EngineState.DRAINING]
        lab.end(2)()

    assert lab.run(nothing, lab.end(1, -9), terminate_while_copy_1_loads, check_drain) == 0
    assert lab.drained == ["copy2"]


def test_a_copy_that_cannot_be_started_is_started_later(tmp_path: Path) -> None:
    lab = CopiesLab(tmp_path, EngineState.READY, EngineState.READY)
    lab.failing_starts = (3,)

    def check_restart() -> None:
        assert lab.states() == [EngineState.STARTING, EngineState.READY]
        lab.terminate()

    assert lab.run(nothing, lab.end(1, -9), nothing, check_restart, lab.end(2)) == 0
    assert lab.drained == ["copy2"]


def test_a_copy_that_serves_before_all_are_ready_is_drained(tmp_path: Path) -> None:
    lab = CopiesLab(tmp_path, EngineState.READY, EngineState.STARTING)

    def check_drain() -> None:
        assert lab.killed() == [False, True]
        assert lab.states() == [EngineState.DRAINING, EngineState.STOPPED]
        lab.end(1)()

    assert lab.run(lab.terminate, check_drain) == 0
    assert lab.drained == ["copy1"]


def test_formatters_that_load_too_slowly_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = CopiesLab(tmp_path, EngineState.READY)
    child: Any = FakeChild()
    child.name = "formatters"
    helper = Helper(child, StatusBoard.create(tmp_path / "formatters", 1))
    assert lab.run(nothing, lab.terminate, loading_timeout=-1.0, helpers=[helper]) == 1
    assert (
        "the formatters were not ready within -1 s (option.model_loading_timeout)" in capsys.readouterr().err
    )


def test_the_end_of_formatters_is_reported_to_their_clients(tmp_path: Path) -> None:
    lab = CopiesLab(tmp_path, EngineState.READY)
    child: Any = FakeChild()
    board = StatusBoard.create(tmp_path / "formatters", 1)
    board.set_state(EngineState.READY)

    def check_board() -> None:
        assert board.read().state is EngineState.FAILED
        lab.terminate()

    child.code = -9
    assert lab.run(nothing, check_board, helpers=[Helper(child, board)]) == 1


@pytest.mark.parametrize(("code", "state"), [(-9, EngineState.FAILED), (0, EngineState.STOPPED)])
def test_the_end_of_a_copy_is_reported_while_the_others_drain(
    code: int, state: EngineState, tmp_path: Path
) -> None:
    lab = CopiesLab(tmp_path, EngineState.READY, EngineState.READY)

    def check_boards() -> None:
        assert lab.states() == [state, EngineState.DRAINING]
        lab.end(2)()

    assert lab.run(nothing, lab.terminate, lab.end(1, code), check_boards) == int(code != 0)
    assert lab.drained == ["copy1", "copy2"]


def test_a_signal_ends_the_wait_for_the_settings_lock(tmp_path: Path) -> None:
    lab = CopiesLab(tmp_path, EngineState.READY, EngineState.READY)

    def restart_copy_1() -> None:
        lab.copies[0].board.set_state(EngineState.READY)

    with settings_lock(tmp_path / "lock", 0, time.sleep):
        lab.run(nothing, lab.end(1, -9), restart_copy_1, lab.terminate, lab.end(1), lab.end(2))
    assert lab.drained == ["copy1", "copy2"]
