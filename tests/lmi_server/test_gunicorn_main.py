"""When gunicorn's master kills a silent worker. Clock and worker are fakes."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from gunicorn import arbiter as gunicorn_arbiter

from lmi_server.http import gunicorn_main
from lmi_server.http.gunicorn_main import PausableArbiter


class Lab:
    """A master with one worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.heartbeat = self.now
        self.killed: list[int] = []
        for module in (gunicorn_main, gunicorn_arbiter):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self._arbiter = PausableArbiter.__new__(PausableArbiter)
        self._arbiter.timeout = 120
        self._arbiter.log = logging.getLogger(__name__)
        self._arbiter.kill_worker = lambda pid, signal: self.killed.append(pid)
        tmp = SimpleNamespace(last_update=lambda: self.heartbeat)
        self._arbiter.WORKERS = {7: SimpleNamespace(tmp=tmp, aborted=False)}

    def run(self, seconds: int, *, silent: bool = False) -> None:
        for _ in range(seconds):
            self.now += 1
            if not silent:
                self.heartbeat = self.now
            self._arbiter.murder_workers()


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def test_a_silent_worker_is_killed_after_the_timeout(lab: Lab) -> None:
    lab.run(200)
    lab.run(120, silent=True)
    assert lab.killed == []
    lab.run(1, silent=True)
    assert lab.killed == [7]


def test_a_pause_of_the_container_does_not_count_as_silence(lab: Lab) -> None:
    lab.run(200)
    lab.now += 200
    lab.run(100, silent=True)
    assert lab.killed == []
    lab.run(200)
    assert lab.killed == []


def test_a_worker_that_stays_silent_after_a_pause_is_killed(lab: Lab) -> None:
    lab.run(200)
    lab.now += 200
    lab.run(122, silent=True)
    assert lab.killed == [7]
