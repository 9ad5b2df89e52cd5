"""Dispatch of requests to workers with an asynchronous handler, and recovery from stuck or crashed workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.python.handlers import slot
from engines.python.request_loop import REACTION_SECONDS
from tests.engines.python.handlers.dispatch_lab import Lab, Turn, invoke


def test_requests_go_immediately_to_the_worker_with_the_fewest_calls(tmp_path: Path) -> None:
    def scenario(lab: Lab) -> Iterator[Turn]:
        first, second = lab.workers
        first.ready()
        yield invoke("a", "b")
        assert first.calls == [["a"], ["b"]]
        second.ready()
        yield invoke("c", "d", "e")
        assert (first.calls, second.calls) == ([["a"], ["b"], ["e"]], [["c"], ["d"]])
        first.answer("a")
        first.answer("b")
        yield invoke("f")
        assert first.calls[-1] == ["f"]
        for name in "ef":
            first.answer(name)
        for name in "cd":
            second.answer(name)
        yield []
        assert lab.errors == dict.fromkeys("abcdef", "")

    Lab(tmp_path, 2).play(scenario)


def test_requests_wait_for_a_full_worker_and_another_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "MAX_CALLS", 2)

    def scenario(lab: Lab) -> Iterator[Turn]:
        lab.workers[0].ready()
        yield invoke("a", "b", "c")
        assert lab.workers[0].calls == [["a"], ["b"]]
        assert len(lab.workers) == 2
        lab.workers[0].answer("b")
        yield []
        assert lab.workers[0].calls[-1] == ["c"]

    Lab(tmp_path, 1).play(scenario)


def test_a_worker_stuck_in_a_timed_out_call_is_killed_and_others_rerun(tmp_path: Path) -> None:
    def scenario(lab: Lab) -> Iterator[Turn]:
        (worker,) = lab.workers
        worker.ready()
        yield invoke("late")
        lab.clock.now += REACTION_SECONDS + 1
        yield invoke("b", "c")
        lab.clock.now += 30 - REACTION_SECONDS - 1
        yield []
        assert lab.errors == {"late": "deadline_exceeded"}
        assert worker.forgotten == ["late"]
        assert not worker.restarts
        lab.clock.now += REACTION_SECONDS
        yield []
        assert worker.restarts == 1
        worker.ready()
        yield invoke("new")
        assert worker.calls == [["b"]], "b runs alone, because it may be the cause"
        worker.answer("b")
        yield []
        worker.answer("c")
        yield []
        assert worker.calls == [["b"], ["c"], ["new"]]
        assert lab.errors == {"late": "deadline_exceeded", "b": "", "c": ""}

    Lab(tmp_path, 1).play(scenario)


def test_a_timed_out_call_that_stops_does_not_affect_others(tmp_path: Path) -> None:
    def scenario(lab: Lab) -> Iterator[Turn]:
        (worker,) = lab.workers
        worker.ready()
        yield invoke("late")
        lab.clock.now += 29
        yield invoke("b")
        lab.clock.now += 1
        yield []
        worker.answer("late")  # too late: the client already has the error
        lab.clock.now += REACTION_SECONDS
        yield []
        worker.answer("b")
        yield []
        assert lab.errors == {"late": "deadline_exceeded", "b": ""}
        assert not worker.restarts

    Lab(tmp_path, 1).play(scenario)


def test_the_cause_of_a_crash_is_found_while_another_worker_serves(tmp_path: Path) -> None:
    def scenario(lab: Lab) -> Iterator[Turn]:
        first, second = lab.workers
        first.ready()
        yield invoke("a", "bad")
        second.ready()
        yield invoke("x")
        assert second.calls == [["x"]]
        first.end()
        yield []
        first.ready()
        yield []
        assert first.calls == [["a"]]
        yield invoke("y", "z")
        assert second.calls == [["x"], ["y"], ["z"]]
        first.answer("a")
        yield []
        assert first.calls == [["a"], ["bad"]]
        first.end()
        yield []
        assert lab.errors == {"a": "", "bad": "request_failed"}
        assert first.restarts == 2

    Lab(tmp_path, 2).play(scenario)


def test_a_crash_after_the_client_disconnected_does_not_stop_the_dispatcher(tmp_path: Path) -> None:
    def scenario(lab: Lab) -> Iterator[Turn]:
        (worker,) = lab.workers
        worker.ready()
        yield invoke("a", "b", "c")
        worker.begin("a")
        worker.begin("b")
        yield []
        lab.client_is_gone = True
        worker.end()
        yield []
        assert worker.restarts == 1
        assert lab.errors == {"a": "request_failed", "b": "request_failed"}
        worker.ready()
        yield []
        assert worker.calls == [], "the client of c has disconnected"

    Lab(tmp_path, 1).play(scenario)
