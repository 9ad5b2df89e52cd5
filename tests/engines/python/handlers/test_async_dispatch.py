"""Dispatch of requests to workers with an asynchronous handler, and recovery from stuck or crashed workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.python.handlers import slot
from engines.python.request_loop import REACTION_SECONDS
from tests.engines.python.handlers.dispatch_lab import Lab, invoke


def test_requests_go_immediately_to_the_worker_with_the_fewest_calls(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 2)
    first, second = lab.workers
    first.ready()
    lab.turn(invoke("a", "b"))
    assert first.calls == [["a"], ["b"]]
    second.ready()
    lab.turn(invoke("c", "d", "e"))
    assert (first.calls, second.calls) == ([["a"], ["b"], ["e"]], [["c"], ["d"]])
    first.answer("a")
    first.answer("b")
    lab.turn(invoke("f"))
    assert first.calls[-1] == ["f"]
    for name in "ef":
        first.answer(name)
    for name in "cd":
        second.answer(name)
    lab.turn()
    assert lab.errors == dict.fromkeys("abcdef", "")


def test_requests_wait_for_a_full_worker_and_another_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "MAX_CALLS", 2)

    lab = Lab(tmp_path, 1)
    lab.workers[0].ready()
    lab.turn(invoke("a", "b", "c"))
    assert lab.workers[0].calls == [["a"], ["b"]]
    assert len(lab.workers) == 2
    lab.workers[0].answer("b")
    lab.turn()
    assert lab.workers[0].calls[-1] == ["c"]


def test_a_worker_stuck_in_a_timed_out_call_is_killed_and_others_rerun(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready()
    lab.turn(invoke("late"))
    lab.clock.now += REACTION_SECONDS + 1
    lab.turn(invoke("b", "c"))
    lab.clock.now += 30 - REACTION_SECONDS - 1
    lab.turn()
    assert lab.errors == {"late": "deadline_exceeded"}
    assert worker.forgotten == ["late"]
    assert not worker.restarts
    lab.clock.now += REACTION_SECONDS
    lab.turn()
    assert worker.restarts == 1
    worker.ready()
    lab.turn(invoke("new"))
    assert worker.calls == [["b"]], "b runs alone, because it may be the cause"
    worker.answer("b")
    lab.turn()
    worker.answer("c")
    lab.turn()
    assert worker.calls == [["b"], ["c"], ["new"]]
    assert lab.errors == {"late": "deadline_exceeded", "b": "", "c": ""}


def test_a_timed_out_call_that_stops_does_not_affect_others(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready()
    lab.turn(invoke("late"))
    lab.clock.now += 29
    lab.turn(invoke("b"))
    lab.clock.now += 1
    lab.turn()
    worker.answer("late")  # too late: the client already has the error
    lab.clock.now += REACTION_SECONDS
    lab.turn()
    worker.answer("b")
    lab.turn()
    assert lab.errors == {"late": "deadline_exceeded", "b": ""}
    assert lab.messages["late"] == "the handler took longer than 30 s (option.predict_timeout)"
    assert not worker.restarts


def test_the_cause_of_a_crash_is_found_while_another_worker_serves(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 2)
    first, second = lab.workers
    first.ready()
    lab.turn(invoke("a", "bad"))
    second.ready()
    lab.turn(invoke("x"))
    assert second.calls == [["x"]]
    first.end()
    lab.turn()
    first.ready()
    lab.turn()
    assert first.calls == [["a"]]
    lab.turn(invoke("y", "z"))
    assert second.calls == [["x"], ["y"], ["z"]]
    first.answer("a")
    lab.turn()
    assert first.calls == [["a"], ["bad"]]
    first.end()
    lab.turn()
    assert lab.errors == {"a": "", "bad": "request_failed"}
    assert first.restarts == 2


def test_a_crash_after_the_client_disconnected_does_not_stop_the_dispatcher(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready()
    lab.turn(invoke("a", "b", "c"))
    worker.begin("a")
    worker.begin("b")
    lab.turn()
    lab.client_is_gone = True
    worker.end()
    lab.turn()
    assert worker.restarts == 1
    assert lab.errors == {"a": "request_failed", "b": "request_failed"}
    worker.ready()
    lab.turn()
    assert worker.calls == [], "the client of c has disconnected"
