"""Worker processes: batches, crashes, shutdown, and handlers that cannot load."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.health import EngineState
from tests.support import processes
from tests.support.handler_engine import HandlerEngine, Reply, handler_config
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def engine() -> Iterator[HandlerEngine]:
    """An engine whose batches start when they have 8 requests. The last of its tests stops it."""
    shared = HandlerEngine(handler_config("batch", batch_size=8, max_batch_delay=600.0))
    shared.wait_ready()
    yield shared
    shared.destroy()


def _invoke(engine: HandlerEngine, *texts: str) -> list[Reply]:
    return [engine.invoke({"inputs": text}) for text in texts]


def _restarts(engine: HandlerEngine) -> float:
    return engine.stats().counters["lmi_worker_restarts_total"]


def test_concurrent_requests_share_a_batch(engine: HandlerEngine) -> None:
    texts = [*(f"item{i}" for i in range(7)), "large" * 400_000]
    replies = _invoke(engine, *texts)
    assert [reply.json()["text"] for reply in replies] == [text[::-1] for text in texts]
    assert {reply.json()["batch"] for reply in replies} == {8}


def test_an_exception_fails_only_one_request_of_a_batch(engine: HandlerEngine) -> None:
    replies = _invoke(engine, "a", "b", "c", "raise", "e", "f", "g", "h")
    assert [reply.status for reply in replies] == [200, 200, 200, 424, 200, 200, 200, 200]
    assert [reply.json().get("text") for reply in replies if reply.status == 200] == list("abcefgh")
    assert "invalid literal for int()" in replies[3].json()["error"]


def test_a_crash_fails_only_one_request_of_a_batch(engine: HandlerEngine) -> None:
    replies = _invoke(engine, "a", "b", "crash", "d", "e", "f", "g", "h", *"ijklmnop")
    assert [reply.json()["text"] for reply in replies if reply is not replies[2]] == list("abdefghijklmnop")
    assert replies[2].error == "request_failed"
    assert "the handler's process ended" in replies[2].pieces[-1].error_message
    assert _restarts(engine) == 2, "once with all requests, once with the cause alone"
    assert engine.stats().gauges["lmi_workers"] == 1


def test_a_drain_that_times_out_leaves_no_process(engine: HandlerEngine) -> None:
    """This must be the last test of the shared engine, because it stops the engine."""
    workers = processes.descendants(engine._popen.pid)
    assert workers
    hanging, *others = _invoke(engine, "hang", *"abcdefg")
    engine.stats()  # all requests have arrived; later ones would be rejected
    engine.drain(0.5)
    assert [reply.error for reply in (hanging, *others)] == ["unavailable"] * 8
    assert engine.wait_exit(200) == 0
    assert processes.wait_exited(workers, 60) == []


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("error", "the handler's first call returned 507"),
        ("import", "No module named 'no_such'; install it into the image or list it in requirements.txt"),
    ],
)
def test_a_handler_that_cannot_load_stops_the_engine_with_the_cause(
    how: str, cause: str, tmp_path: Path
) -> None:
    (tmp_path / "how").write_text(how)
    engine = HandlerEngine(handler_config("loading", how=str(tmp_path / "how")))
    try:
        assert engine.wait_exit(200) == 1
        assert engine.health.state is EngineState.FAILED
        assert cause in engine.health.reason
    finally:
        engine.destroy()


def test_a_worker_that_cannot_load_is_restarted_until_it_fails_repeatedly(tmp_path: Path) -> None:
    engine = HandlerEngine(handler_config("loading", how=str(tmp_path / "how")))
    try:
        engine.wait_ready()
        (tmp_path / "how").write_text("raise once")
        first = int(engine.invoke("pid").body)
        os.kill(first, signal.SIGKILL)
        began = time.monotonic()
        wait_until(lambda: _restarts(engine) >= 2)
        engine.wait_ready()
        load_seconds = sum(engine.stats().info.load_seconds.values())
        assert time.monotonic() - began < 2 * load_seconds + 30.0, "30 s are enough on a slow machine"
        second = int(engine.invoke("pid").body)
        assert second != first
        assert _restarts(engine) == 2
        (tmp_path / "how").write_text("exit")
        os.kill(second, signal.SIGKILL)
        assert engine.wait_exit(200) == 1
        assert "exit code 9" in engine.health.reason
    finally:
        engine.destroy()
