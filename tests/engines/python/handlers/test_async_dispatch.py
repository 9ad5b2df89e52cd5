"""Dispatch of requests to workers with an asynchronous handler, and recovery from stuck or crashed workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.core import AbortReason
from engines.python.handlers import slot
from engines.python.request_loop import REACTION_SECONDS
from engines.wire import Abort
from tests.engines.mpi.fakes import CLIENT
from tests.engines.python.handlers.dispatch_lab import FakeWorker, Lab, Turn, invoke


def leave(name: str) -> Turn:
    """Let the client of a request disconnect."""
    return [(CLIENT, Abort(name, AbortReason.CLIENT_LEFT))]


@pytest.fixture
def lab_of_two_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """One worker, which takes two calls at a time. More workers may start."""
    monkeypatch.setattr(slot, "MAX_CALLS", 2)
    return Lab(tmp_path, 1)


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


def test_requests_wait_for_a_full_worker_and_another_one_starts(lab_of_two_calls: Lab) -> None:
    lab = lab_of_two_calls
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
    lab.wait(30 - REACTION_SECONDS - 1)
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
    lab.wait(29)
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


def test_a_call_whose_client_leaves_just_before_its_deadline_has_time_to_stop(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready()
    lab.turn(invoke("left"))
    lab.wait(20)
    lab.turn(invoke("stream"))
    worker.begin("stream")
    lab.clock.now += 9
    lab.turn(leave("left"))
    assert worker.forgotten == ["left"]
    lab.clock.now += REACTION_SECONDS - 1
    lab.turn()
    assert not worker.restarts
    worker.answer("left")
    lab.turn()
    lab.clock.now += 1
    worker.answer("stream")
    lab.turn()
    assert not worker.restarts
    assert lab.errors == {"stream": ""}


def test_a_worker_that_does_not_react_when_a_client_leaves_is_killed(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready()
    lab.turn(invoke("blocks", "b"))
    lab.turn(leave("blocks"))
    lab.clock.now += REACTION_SECONDS - 1
    lab.turn()
    assert not worker.restarts
    lab.clock.now += 1
    lab.turn()
    assert worker.restarts == 1
    assert lab.board.read().reason.endswith("the handler did not stop within 5 s of a cancellation")
    worker.ready()
    lab.turn()
    assert worker.calls == [["b"]]


def _drop_the_second_worker(lab: Lab) -> FakeWorker:
    """Let the second of two workers crash in its calls c and d, and fail to load. Return the first, which runs a."""
    first = lab.workers[0]
    first.ready()
    lab.turn(invoke("a", "b", "c", "d"))
    second = lab.workers[1]
    second.ready()
    lab.turn()
    assert (first.calls, second.calls) == ([["a"], ["b"]], [["c"], ["d"]])
    second.end()
    lab.turn()
    second.cannot_load()
    first.answer("b")
    lab.turn()
    assert second.closed
    return first


def test_a_busy_worker_becomes_idle_for_requests_to_be_retried_alone(lab_of_two_calls: Lab) -> None:
    lab = lab_of_two_calls
    first = _drop_the_second_worker(lab)
    lab.turn(invoke("new"))
    assert first.calls == [["a"], ["b"]]
    for done in "acd":
        first.answer(done)
        lab.turn()
    assert first.calls == [["a"], ["b"], ["c"], ["d"], ["new"]]
    assert lab.errors == dict.fromkeys("bacd", "")


def test_a_worker_takes_new_calls_again_when_no_request_is_left_to_be_retried(lab_of_two_calls: Lab) -> None:
    lab = lab_of_two_calls
    first = _drop_the_second_worker(lab)
    lab.turn(invoke("new"))
    lab.turn([*leave("c"), *leave("d")])
    assert first.calls == [["a"], ["b"], ["new"]]


def test_only_the_worker_with_the_fewest_calls_is_kept_for_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "MAX_CALLS", 3)
    lab = Lab(tmp_path, 2)
    first, second = lab.workers
    first.ready()
    second.ready()
    lab.turn(invoke("a", "b", "c", "d", "e", "f", "g", "h"))
    third = lab.workers[2]
    third.ready()
    lab.turn()
    assert third.calls == [["g"], ["h"]]
    third.end()
    lab.turn()
    third.cannot_load()
    first.answer("a")
    first.answer("c")
    second.answer("b")
    lab.turn(invoke("new"))
    assert (first.calls[3:], second.calls[3:]) == ([], [["new"]])
    first.answer("e")
    lab.turn()
    assert first.calls[3:] == [["g"]]


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


def test_calls_of_an_exited_web_process_are_dropped_before_they_answer(lab_of_two_calls: Lab) -> None:
    lab = lab_of_two_calls
    lab.workers[0].ready()
    lab.turn(invoke("a", "b"))
    lab.client_is_gone = True
    lab.wait(3.0)
    assert lab.workers[0].forgotten == ["a", "b"]
