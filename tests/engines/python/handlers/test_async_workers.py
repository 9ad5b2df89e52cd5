"""An asynchronous handler in its worker: concurrent requests, and isolation of failures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.core import AbortReason
from tests.support.handler_engine import HandlerEngine, handler_config
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def engine() -> Iterator[HandlerEngine]:
    """An engine that no test in this module stops."""
    shared = HandlerEngine(handler_config("asynchronous"))
    shared.wait_ready()
    yield shared
    shared.destroy()


def test_requests_run_concurrently_in_one_process(engine: HandlerEngine) -> None:
    replies = [engine.invoke({"do": "meet", "size": 10, "inputs": "abc"}) for _ in range(10)]
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


def test_a_call_whose_client_disconnects_is_canceled(engine: HandlerEngine, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    reply = engine.invoke({"do": "tell", "path": str(mark)})
    # Messages of one client arrive in order, so the first call has begun when this one returns.
    assert engine.invoke({"inputs": "ab"}).json()["text"] == "ba"
    engine.client.abort(reply.name, AbortReason.CLIENT_LEFT)
    wait_until(lambda: mark.exists() and mark.read_text() == "canceled")
    wait_until(lambda: engine.stats().gauges["lmi_requests_running"] == 0)


def test_blocked_streams_of_clients_that_disconnected_leave_threads_for_others(engine: HandlerEngine) -> None:
    num_default_threads = min(32, (os.cpu_count() or 1) + 4)  # of asyncio
    replies = [engine.invoke({"do": "block"}) for _ in range(num_default_threads)]
    for reply in replies:
        assert reply.next().body == b"begun"
    for reply in replies:
        engine.client.abort(reply.name, AbortReason.CLIENT_LEFT)
    assert engine.invoke({"do": "iterate", "inputs": "to be"}).body == b"tobe"
    assert engine.invoke({"do": "release", "inputs": "ab"}).json()["text"] == "ba"


def test_a_request_that_ends_the_worker_fails_alone(engine: HandlerEngine, tmp_path: Path) -> None:
    running = engine.invoke({"do": "wait once", "path": str(tmp_path / "mark"), "inputs": "ab"})
    bad = engine.invoke({"do": "exit"})
    late = engine.invoke({"inputs": "cd"})
    assert (running.json()["text"], late.json()["text"]) == ("ba", "dc")
    assert bad.error == "request_failed"
    assert "the handler's process ended: it ended with exit code 3" in bad.pieces[-1].error_message
