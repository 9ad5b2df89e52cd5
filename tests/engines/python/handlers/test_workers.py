"""Worker processes: crashes, hangs, scaling and shutdown."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.health import EngineState
from engines.python.handlers.slot import worker_command
from tests.support import processes
from tests.support.handler_engine import HandlerEngine, handler_config
from tests.support.waiting import wait_until

Start = Callable[..., HandlerEngine]
_RESTART_SECONDS = 30.0
"""Upper limit for a restart without the load time, also on a slow machine."""


@pytest.fixture
def start() -> Iterator[Start]:
    """Start engines that are destroyed after the test."""
    engines: list[HandlerEngine] = []

    def engine(name: str, **settings: object) -> HandlerEngine:
        engines.append(HandlerEngine(handler_config(name, **settings)))  # type: ignore[arg-type]
        engines[-1].wait_ready()
        return engines[-1]

    yield engine
    for one in engines:
        one.destroy()


def _restarts(engine: HandlerEngine) -> float:
    return engine.stats().counters["lmi_worker_restarts_total"]


def _load_seconds(engine: HandlerEngine) -> float:
    return sum(engine.stats().info.load_seconds.values())


def _wait_ready_again(engine: HandlerEngine) -> float:
    began = time.monotonic()
    engine.wait_ready()
    return time.monotonic() - began


@pytest.mark.parametrize("how", ["crash", "exit"])
def test_a_crash_fails_only_one_request_of_a_batch(start: Start, how: str) -> None:
    engine = start("batch", batch_size=8, max_batch_delay=0.3)
    texts = ["a", "b", how, "d", "e", "f", "g", "h"]
    replies = [engine.invoke({"inputs": text}) for text in texts]
    assert [reply.json()["text"] for reply in replies if reply is not replies[2]] == list("abdefgh")
    assert replies[2].error == "request_failed"
    assert "the handler's process ended" in replies[2].pieces[-1].error_message
    assert _restarts(engine) == 2, "once with all requests, once with the cause alone"
    assert _wait_ready_again(engine) < _RESTART_SECONDS + _load_seconds(engine)
    assert engine.invoke({"inputs": "later"}).json()["text"] == "retal"


def test_a_hang_fails_only_one_request_of_a_batch(start: Start) -> None:
    engine = start("batch", batch_size=8, max_batch_delay=0.3, batch_timeout=2.0)
    texts = ["a", "b", "c", "d", "e", "f", "g", "hang"]
    replies = [engine.invoke({"inputs": text}) for text in texts]
    assert [reply.json()["text"] for reply in replies[:7]] == list("abcdefg")
    assert replies[7].error == "deadline_exceeded"
    assert "longer than 2 s (option.predict_timeout)" in replies[7].pieces[-1].error_message
    assert _wait_ready_again(engine) < _RESTART_SECONDS + _load_seconds(engine)
    assert engine.invoke({"inputs": "later"}).json()["text"] == "retal"


def test_a_crash_does_not_affect_waiting_requests(start: Start) -> None:
    engine = start("batch")
    replies = [engine.invoke({"inputs": text}) for text in ("a", "crash", "c")]
    assert [reply.error for reply in replies] == ["", "request_failed", ""]
    assert replies[2].json()["text"] == "c"


def test_extra_workers_start_while_requests_wait_and_stop_when_idle(start: Start) -> None:
    engine = start("batch", min_workers=1, max_workers=2, max_idle_seconds=1.0, batch_timeout=3.0)
    hanging = engine.invoke({"inputs": "hang"})
    assert engine.invoke({"inputs": "beside"}).json()["text"] == "ediseb"
    assert engine.health.state is EngineState.READY
    assert hanging.error == "deadline_exceeded"
    wait_until(lambda: engine.stats().gauges["lmi_workers"] == 1)


def test_the_engine_is_ready_while_one_of_two_workers_hangs(start: Start) -> None:
    engine = start("batch", min_workers=2, max_workers=2, batch_timeout=4.0)
    hanging = engine.invoke({"inputs": "hang"})
    pids = {engine.invoke({"inputs": "a"}).json()["pid"] for _ in range(3)}
    assert len(pids) == 1, "the other one hangs"
    assert engine.health.ready
    (other,) = pids
    os.kill(other, signal.SIGKILL)
    assert hanging.error == "deadline_exceeded"
    engine.wait_ready()
    assert engine.invoke({"inputs": "a"}).json()["text"] == "a"


def test_each_worker_sees_its_own_gpus() -> None:
    config = handler_config("devices")
    settings = replace(config.handler, worker_gpus=("4,5", "6,7"))
    commands = [worker_command(settings, Path("config"), number) for number in range(3)]
    assert [command[:2] for command in commands] == [
        ["env", f"CUDA_VISIBLE_DEVICES={gpus}"] for gpus in ("4,5", "6,7", "4,5")
    ]
    parallel = replace(config.parallel, device="cuda", tp_size=2)
    engine = HandlerEngine(replace(config, handler=settings, parallel=parallel))
    try:
        engine.wait_ready()
        assert engine.invoke("x").json() == {"visible": "4,5", "device_id": "0"}
    finally:
        engine.destroy()


def test_a_full_queue_rejects_requests(start: Start) -> None:
    engine = start("batch", max_waiting=2)
    replies = [engine.invoke({"inputs": "hang"}) for _ in range(4)]
    assert replies[3].error == "overloaded"


def test_a_drain_that_times_out_leaves_no_process(start: Start) -> None:
    engine = start("batch", batch_timeout=30.0)
    assert engine.invoke({"inputs": "a"}).status == 200
    workers = processes.descendants(engine._popen.pid)
    assert workers
    hanging = engine.invoke({"inputs": "hang"})
    engine.stats()
    engine.drain(0.5)
    assert hanging.error == "unavailable"
    assert engine.wait_exit(200) == 0
    assert processes.wait_exited(workers, 60) == []


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("raise", "RuntimeError: there are no weights"),
        ("error", "the handler's first call returned 507"),
        ("exit", "exit code 9"),
    ],
)
def test_a_handler_that_cannot_load_stops_the_engine_with_the_cause(
    tmp_path: Path, how: str, cause: str
) -> None:
    (tmp_path / "how").write_text(how)
    engine = HandlerEngine(handler_config("loading", how=str(tmp_path / "how")))
    try:
        assert engine.wait_exit(200) == 1
        assert engine.health.state is EngineState.FAILED
        assert cause in engine.health.reason
    finally:
        engine.destroy()


def test_workers_that_die_repeatedly_stop_the_engine(start: Start, tmp_path: Path) -> None:
    engine = start("loading", how=str(tmp_path / "how"))
    (tmp_path / "how").write_text("exit")
    os.kill(int(engine.invoke("pid").body), signal.SIGKILL)
    assert engine.wait_exit(200) == 1
    assert "exit code 9" in engine.health.reason


def test_a_worker_that_fails_to_load_once_is_restarted(start: Start, tmp_path: Path) -> None:
    engine = start("loading", how=str(tmp_path / "how"))
    (tmp_path / "how").write_text("raise once")
    first = int(engine.invoke("pid").body)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: _restarts(engine) >= 2)
    engine.wait_ready()
    assert int(engine.invoke("pid").body) != first
    assert _restarts(engine) == 2
