"""Dispatch to workers that run one call at a time: retries, number of workers, and failures to load."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from engines.core import AbortReason
from engines.health import EngineState
from engines.invocations import Invocation
from engines.python.handlers.dispatch import GROW_AGAIN_SECONDS
from engines.python.request_loop import MAX_CRASHES, REACTION_SECONDS, EngineFailed
from engines.wire import Abort, Drain, Invoke
from tests.engines.mpi.fakes import CLIENT
from tests.engines.python.handlers.dispatch_lab import FakeWorker, Lab, invoke


def test_an_aborted_request_is_dropped_from_its_call_or_the_queue(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready(accepts_concurrent_calls=False)
    lab.turn(invoke("running", "waiting", "stays"))
    lab.turn([(CLIENT, Abort(name, AbortReason.CLIENT_LEFT)) for name in ("running", "waiting")])
    assert worker.forgotten == ["running"]
    lab.wait(REACTION_SECONDS + 1)
    lab.turn()
    assert not worker.restarts, "only an asynchronous call must stop at once"
    worker.answer("running")
    lab.turn()
    assert worker.calls == [["running"], ["stays"]]
    assert lab.errors == {}


def test_a_waiting_body_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready(accepts_concurrent_calls=False)
    lab.turn(invoke("running"))
    data = bytes(64 * 1024**2)
    lab.turn([(CLIENT, Invoke(Invocation(str(n), 0.0, {}, (("data", data),)))) for n in range(17)])
    assert lab.errors == {"16": "overloaded"}


@pytest.mark.parametrize(("how", "kind"), [("crash", "request_failed"), ("hang", "deadline_exceeded")])
def test_requests_of_a_batch_that_ends_its_worker_run_again_alone(
    how: str, kind: str, tmp_path: Path
) -> None:
    lab = Lab(tmp_path, 1, batch_size=2)
    (worker,) = lab.workers

    def end() -> None:
        if how == "crash":
            worker.end()
        else:
            lab.wait(30)

    worker.ready(accepts_concurrent_calls=False)
    lab.turn(invoke("a", "bad", "waiting"))
    assert worker.calls == [["a", "bad"]]
    end()
    lab.turn()
    worker.ready(accepts_concurrent_calls=False)
    lab.turn()
    assert worker.calls == [["a"]]
    worker.answer("a")
    lab.turn()
    assert worker.calls == [["a"], ["bad"]]
    end()
    lab.turn()
    assert lab.errors == {"a": "", "bad": kind}
    assert worker.restarts == 2
    worker.ready(accepts_concurrent_calls=False)
    lab.turn()
    assert worker.calls == [["waiting"]]


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_call_that_was_paused_with_the_server_may_end(concurrent: bool, tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready(accepts_concurrent_calls=concurrent)
    lab.turn(invoke("a", "b"))
    lab.clock.now += 300  # docker pause
    lab.turn()
    worker.answer("a")
    lab.turn()
    assert (worker.restarts, lab.errors) == (0, {"a": ""})
    lab.wait(REACTION_SECONDS + 31)
    lab.turn()
    assert lab.errors["b"] == "deadline_exceeded"


def test_a_worker_that_was_paused_while_loading_may_become_ready(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready()
    lab.turn()
    worker.end()
    lab.turn()
    lab.clock.now += lab.loading_timeout + 1
    lab.turn()
    worker.ready()
    lab.turn(invoke("a"))
    assert (worker.restarts, worker.calls) == (1, [["a"]])


def test_a_handler_of_single_requests_has_the_time_limit_for_each_of_them(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 2, batch_size=4, max_batch_delay=5)
    for worker in lab.workers:
        worker.ready(accepts_concurrent_calls=False, takes_batches=False)
    lab.turn(invoke(*"abcd"))
    first, second = lab.workers[:2]
    assert (first.calls, second.calls) == ([["a"]], [["b"]])
    lab.wait(29)
    first.answer("a")
    lab.turn()
    assert first.calls == [["a"], ["c"]]
    lab.wait(29)
    lab.turn()
    assert (first.restarts, second.restarts) == (0, 1)
    assert lab.errors == {"a": "", "b": "deadline_exceeded"}


def _with_an_extra_worker(tmp_path: Path, *requests: str) -> tuple[Lab, FakeWorker, FakeWorker]:
    """Send two requests to a worker that serves one at a time, so that another worker is started for the second."""
    lab = Lab(tmp_path, 1, timeout=3600.0)
    (first,) = lab.workers
    first.ready(accepts_concurrent_calls=False)
    lab.turn(invoke(*requests))
    extra = lab.workers[1]
    extra.ready(accepts_concurrent_calls=False)
    lab.turn()
    return lab, first, extra


def test_an_extra_worker_starts_while_requests_wait_and_stops_when_idle(tmp_path: Path) -> None:
    lab, first, extra = _with_an_extra_worker(tmp_path, "long", "beside")
    assert (first.calls, extra.calls) == ([["long"]], [["beside"]])
    extra.answer("beside")
    lab.turn()
    lab.wait(lab.max_idle_seconds - 1)
    lab.turn()
    assert not extra.closed
    lab.clock.now += 1
    lab.turn()
    assert extra.closed
    assert not first.closed
    assert lab.watched == [first.fileno()]


def test_an_idle_extra_worker_is_kept_while_the_other_one_loads(tmp_path: Path) -> None:
    lab, first, extra = _with_an_extra_worker(tmp_path, "a", "b")
    first.answer("a")
    extra.answer("b")
    lab.turn()
    first.end()
    lab.wait(lab.max_idle_seconds + 1)
    lab.turn()
    assert (extra.closed, lab.board.read().state) == (False, EngineState.READY)
    first.ready(accepts_concurrent_calls=False)
    lab.turn()
    assert extra.closed


@pytest.mark.parametrize(("num_workers", "concurrent"), [(4, False), (1, True)])
def test_requests_that_idle_workers_can_take_do_not_fill_the_queue(
    num_workers: int, concurrent: bool, tmp_path: Path
) -> None:
    lab = Lab(tmp_path, num_workers, max_waiting=1)
    for worker in lab.workers:
        worker.ready(accepts_concurrent_calls=concurrent)
    lab.turn()
    lab.turn(invoke(*"abcdef"))
    assert lab.errors == ({} if concurrent else {"f": "overloaded"})


def test_the_engine_is_ready_while_one_of_two_workers_hangs(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 2)
    first, second = lab.workers
    first.ready(accepts_concurrent_calls=False)
    lab.turn()
    assert lab.board.read().state is EngineState.STARTING, "one of the workers has never been ready"
    second.ready(accepts_concurrent_calls=False)
    lab.turn(invoke("hangs", "b"))
    second.answer("b")
    lab.wait(30)
    lab.turn()
    assert lab.errors == {"hangs": "deadline_exceeded", "b": ""}
    assert (first.restarts, lab.board.read().state) == (1, EngineState.READY)
    second.end()
    lab.turn()
    assert lab.board.read().state is EngineState.STARTING
    first.ready(accepts_concurrent_calls=False)
    lab.turn(invoke("c"))
    assert (first.calls, lab.board.read().state) == ([["c"]], EngineState.READY)


def test_unfinished_requests_get_an_error_when_the_drain_times_out(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready(accepts_concurrent_calls=False)
    lab.turn(invoke("a", "b"))
    lab.turn([(CLIENT, Drain(1.0))])
    lab.clock.now += 1
    lab.turn()
    assert lab.errors == {"a": "unavailable", "b": "unavailable"}
    assert worker.closed


def test_a_drain_lets_a_handler_that_has_responded_clean_up(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready(accepts_concurrent_calls=False)
    lab.turn(invoke("a"))
    worker.respond("a")
    lab.turn([(CLIENT, Drain(60.0))])
    lab.turn()
    assert (worker.closed, lab.errors) == (False, {"a": ""})
    worker.end_call("a")
    lab.turn()
    assert worker.closed


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("cannot_load", r"^\S+model\.py: RuntimeError: out of memory"),
        ("end", "worker 0 ended while loading the handler"),
    ],
)
def test_a_handler_that_cannot_load_at_the_start_stops_the_engine(
    how: str, cause: str, tmp_path: Path
) -> None:
    lab = Lab(tmp_path, 1)
    getattr(lab.workers[0], how)()
    with pytest.raises(EngineFailed, match=cause):
        lab.turn()


def test_an_extra_worker_that_cannot_load_is_dropped_and_retried_later(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1, timeout=3600.0)
    (first,) = lab.workers
    first.ready(accepts_concurrent_calls=False)
    lab.turn(invoke("a", "b"))
    for tries in range(1, MAX_CRASHES + 2):
        assert len(lab.workers) == 1 + tries
        extra = lab.workers[-1]
        assert extra.number == 1
        extra.cannot_load()
        lab.turn()
        assert extra.closed
        assert not extra.restarts
        lab.wait(GROW_AGAIN_SECONDS - 1)
        lab.turn()
        assert len(lab.workers) == 1 + tries, "too early"
        lab.clock.now += 1
        lab.turn()
    first.answer("a")
    lab.turn()
    assert first.calls == [["a"], ["b"]]
    first.answer("b")
    lab.turn()
    assert lab.errors == {"a": "", "b": ""}


def test_an_extra_worker_that_cannot_be_started_is_retried_later(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1, timeout=3600.0)
    (first,) = lab.workers
    first.ready(accepts_concurrent_calls=False)
    lab.start_error = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    lab.turn(invoke("a", "b"))
    lab.start_error = None
    lab.wait(GROW_AGAIN_SECONDS - 1)
    lab.turn()
    assert lab.workers == [first], "too early"
    lab.clock.now += 1
    lab.turn()
    assert len(lab.workers) == 2
    first.answer("a")
    lab.turn()
    assert first.calls == [["a"], ["b"]]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_worker_that_cannot_be_restarted_is_replaced_later(num_workers: int, tmp_path: Path) -> None:
    lab = Lab(tmp_path, num_workers, timeout=3600.0)
    for worker in lab.workers:
        worker.ready(accepts_concurrent_calls=False)
    lab.turn()
    failing = lab.workers[-1]
    failing.restart_error = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    failing.end()
    lab.turn()
    assert lab.board.read().state is (EngineState.READY if num_workers == 2 else EngineState.STARTING)
    lab.wait(GROW_AGAIN_SECONDS - 1)
    lab.turn()
    assert len(lab.workers) == num_workers, "too early"
    lab.clock.now += 1
    lab.turn()
    assert len(lab.workers) == num_workers + 1
    lab.workers[-1].ready(accepts_concurrent_calls=False)
    lab.turn(invoke(*"ab"[:num_workers]))
    assert lab.workers[-1].calls == [["ab"[num_workers - 1]]]
    assert lab.board.read().state is EngineState.READY


def test_an_extra_worker_whose_load_times_out_is_dropped(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1, timeout=3600.0)
    (first,) = lab.workers
    first.ready(accepts_concurrent_calls=False)
    lab.turn(invoke("a", "b"))
    extra = lab.workers[-1]
    lab.wait(lab.loading_timeout)
    extra.cannot_load()
    lab.turn()
    assert extra.closed
    assert len(lab.workers) == 2


def test_a_worker_that_ends_while_idle_again_and_again_stops_the_engine(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 1)
    (worker,) = lab.workers
    worker.ready(accepts_concurrent_calls=False)
    lab.turn()

    def crash() -> None:
        worker.end()
        lab.turn()
        worker.ready(accepts_concurrent_calls=False)
        lab.turn()

    for _ in range(MAX_CRASHES - 1):
        crash()
    lab.turn(invoke("a"))
    worker.answer("a")
    lab.turn()
    for _ in range(MAX_CRASHES - 1):
        crash()
    with pytest.raises(EngineFailed, match="worker 0 ended while idle"):
        crash()
    assert lab.errors == {"a": ""}
    assert worker.restarts == 2 * (MAX_CRASHES - 1)


def test_a_working_worker_does_not_hide_another_that_cannot_load(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 2)
    first, second = lab.workers
    first.ready(accepts_concurrent_calls=False)
    second.ready(accepts_concurrent_calls=False)
    lab.turn()
    second.end()
    lab.turn(invoke("a"))
    first.answer("a")
    second.cannot_load()
    lab.turn(invoke("b"))
    first.answer("b")
    second.cannot_load()
    with pytest.raises(EngineFailed, match=r"worker 1 ended while loading.*out of memory"):
        lab.turn()
