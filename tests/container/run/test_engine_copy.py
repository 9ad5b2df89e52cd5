"""When an engine counts as failed, and when it is restarted. The engine process is a fake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from container.run.cause import cause_of_death
from container.run.engine_copy import EngineCopy, RestartRule
from engines.health import EngineState, StatusBoard

RULE = RestartRule(max_deaths=3, delay=1.0, long_service=60.0, max_stalled_checks=5)


class FakeChild:
    name = "copy 1"

    def __init__(self) -> None:
        self.code: int | None = None
        self.killed = False

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float) -> int | None:
        return self.code

    def death(self) -> str | None:
        return None if self.code is None else cause_of_death(self.name, self.code, [])

    def kill_all(self) -> None:
        self.killed = True


class Lab:
    """A copy with a fake clock."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.children: list[Any] = []
        self._folder = folder
        self.copy = EngineCopy("copy 1", self._start, control=Any, rule=RULE, clock=lambda: self.now)  # type: ignore[arg-type]

    def _start(self) -> tuple[Any, StatusBoard]:
        self.children.append(FakeChild())
        return self.children[-1], StatusBoard.create(self._folder / str(len(self.children)), 1)

    def become_ready(self) -> None:
        self.copy.board.beat(0)
        self.copy.board.set_state(EngineState.READY)
        assert self.copy.poll_ready()
        assert not self.copy.poll_ready()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_healthy_engine_is_not_restarted(lab: Lab) -> None:
    assert lab.copy.failure(10) is None
    lab.become_ready()
    lab.now = 1000.0
    assert lab.copy.failure(10) is None
    assert not lab.copy.poll_ready()
    assert len(lab.children) == 1


def test_restart_delays_grow_until_restarts_stop(lab: Lab) -> None:
    lab.become_ready()
    for delay in (1.0, 2.0):
        lab.children[-1].code = -9
        assert "SIGKILL" in (lab.copy.failure(10) or "")
        assert lab.copy.schedule_restart("killed") == delay
        assert lab.children[-1].killed
        assert lab.copy.board.read().state is EngineState.FAILED
        assert not lab.copy.alive
        lab.now += delay - 0.1
        assert not lab.copy.poll_ready()
        assert lab.copy.failure(10) is None  # no engine is running
        started = len(lab.children)
        lab.now += 0.2
        lab.copy.poll_ready()
        assert lab.copy.alive
        assert len(lab.children) == started + 1
        lab.become_ready()
    assert lab.copy.schedule_restart("killed") is None


def test_long_service_resets_the_restart_delay(lab: Lab) -> None:
    lab.become_ready()
    for _ in range(5):
        lab.now += 61
        assert lab.copy.schedule_restart("killed") == 1.0
        lab.now += 1
        lab.copy.poll_ready()
        lab.become_ready()


def test_a_restarted_engine_that_loads_too_slowly_has_failed(lab: Lab) -> None:
    lab.become_ready()
    lab.now = 100.0
    assert lab.copy.schedule_restart("killed") is not None
    lab.now = 101.0
    lab.copy.poll_ready()
    lab.now = 110.0
    assert lab.copy.failure(10) is None
    lab.now = 112.0
    assert "copy 1 was not ready within 10 s" in (lab.copy.failure(10) or "")


def test_an_engine_that_is_ready_while_the_rest_of_the_server_loads_is_not_late(lab: Lab) -> None:
    lab.copy.board.set_state(EngineState.READY)
    lab.now = 11.0
    assert lab.copy.failure(10) is None


def test_a_ready_engine_without_progress_is_stuck(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.become_ready()
    monkeypatch.setattr("engines.health.STALE_AFTER_SECONDS", -1.0)
    for _ in range(4):
        assert lab.copy.stuck() is None
    monkeypatch.setattr("engines.health.STALE_AFTER_SECONDS", 1e9)
    assert lab.copy.stuck() is None
    monkeypatch.setattr("engines.health.STALE_AFTER_SECONDS", -1.0)
    for _ in range(4):
        assert lab.copy.stuck() is None
    assert "copy 1 made no progress" in (lab.copy.stuck() or "")


def test_a_loading_engine_is_not_stuck(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.health.STALE_AFTER_SECONDS", -1.0)
    for _ in range(9):
        assert lab.copy.stuck() is None
