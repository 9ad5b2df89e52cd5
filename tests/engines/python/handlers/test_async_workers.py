"""An asynchronous handler in its worker: concurrent requests, and isolation of failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines.core import AbortReason
from tests.support.handler_engine import HandlerEngine, Reply, handler_config
from tests.support.waiting import wait_until

Start = Callable[..., HandlerEngine]


@pytest.fixture(scope="module")
def engine() -> Iterator[HandlerEngine]:
    """An engine that no test in this module stops."""
    shared = HandlerEngine(handler_config("asynchronous"))
    shared.wait_ready()
    yield shared
    shared.destroy()


@pytest.fixture
def start() -> Iterator[Start]:
    """Start engines that are destroyed after the test."""
    engines: list[HandlerEngine] = []

    def make(**settings: object) -> HandlerEngine:
        engines.append(HandlerEngine(handler_config("asynchronous", **settings)))  # type: ignore[arg-type]
        engines[-1].wait_ready()
        return engines[-1]

    yield make
    for one in engines:
        one.destroy()


def _meeting(engine: HandlerEngine, name: str, size: int) -> list[Reply]:
    body = {"do": "meet", "name": name, "size": size, "inputs": "abc"}
    return [engine.invoke(body) for _ in range(size)]


def test_requests_run_concurrently_in_one_process(engine: HandlerEngine) -> None:
    replies = _meeting(engine, "ten", 10)
    assert {reply.json()["text"] for reply in replies} == {"cba"}
    assert len({reply.json()["pid"] for reply in replies}) == 1
    assert replies[0].headers["Content-Type"] == "application/json"


def test_an_exception_fails_only_its_own_request(engine: HandlerEngine) -> None:
    bad = engine.invoke({"do": "raise"})
    assert (bad.status, bad.json()["error"]) == (424, "no such thing")


def test_a_call_that_cancels_itself_gets_an_error(engine: HandlerEngine) -> None:
    bad = engine.invoke({"do": "cancel"})
    assert bad.error == "request_failed"
    assert bad.pieces[-1].error_message == "the handler returned without a response"


def test_outputs_of_a_generator_are_streamed(engine: HandlerEngine) -> None:
    reply = engine.invoke({"do": "stream", "inputs": "to be"})
    assert [piece.body for piece in reply.pieces] == [b'{"word": "to"}\n', b'{"word": "be"}\n', b""]
    assert reply.headers["Content-Type"] == "application/jsonlines"
    assert engine.invoke({"do": "stream", "inputs": ""}).status == 204
    assert engine.invoke({"do": "iterate", "inputs": "to be"}).body == b"tobe"


def test_a_call_whose_client_disconnects_is_cancelled(engine: HandlerEngine, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    reply = engine.invoke({"do": "tell", "path": str(mark)})
    # Messages of one client arrive in order, so the first call has begun when this one returns.
    assert engine.invoke({"inputs": "ab"}).json()["text"] == "ba"
    engine.client.abort(reply.name, AbortReason.CLIENT_LEFT)
    wait_until(lambda: mark.exists() and mark.read_text() == "cancelled")
    wait_until(lambda: engine.stats().gauges["lmi_requests_running"] == 0)


def test_a_call_that_times_out_is_cancelled_and_others_continue(start: Start) -> None:
    engine = start(batch_timeout=3.0)
    slow = engine.invoke({"do": "wait"})
    time.sleep(0.5)
    others = _meeting(engine, "early", 3)
    pids = {reply.json()["pid"] for reply in others}
    assert slow.error == "deadline_exceeded"
    assert "longer than 3 s (option.predict_timeout)" in slow.pieces[-1].error_message
    assert engine.invoke({"inputs": "later"}).json()["pid"] in pids, "the process must be the same"
    assert engine.stats().counters["lmi_worker_restarts_total"] == 0


def test_a_crash_fails_only_the_request_that_causes_it(start: Start, tmp_path: Path) -> None:
    engine = start()
    mark = str(tmp_path / "crashed")
    waiting = [engine.invoke({"do": "wait", "unless": mark, "inputs": text}) for text in ("ab", "cd", "ef")]
    crash = engine.invoke({"do": "crash", "path": mark})
    assert [reply.json()["text"] for reply in waiting] == ["ba", "dc", "fe"]
    assert crash.error == "request_failed"
    assert "the handler's process ended" in crash.pieces[-1].error_message
    assert engine.stats().counters["lmi_worker_restarts_total"] == 2, (
        "once with all requests, once with the cause alone"
    )
    engine.wait_ready()
    assert engine.invoke({"inputs": "ab"}).json()["text"] == "ba"
