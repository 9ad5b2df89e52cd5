"""engine=Python with real processes: tokens, aborts, crashes and shutdown."""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from engines.client import ClientStream
from engines.config import PythonEngineConfig
from engines.core import AbortReason, FinishReason, RequestOutput
from engines.health import EngineState
from tests.engines.conftest import Answer
from tests.support import processes
from tests.support.dynamic_engine import DynamicEngine, make_dynamic_config
from tests.support.engine_process import collect, next_output, tokens_of
from tests.support.waiting import wait_until

Start = Callable[[PythonEngineConfig], DynamicEngine]
_LONG = 110
"""Number of tokens of a request that runs long enough for the test to interfere."""


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Start engines that are destroyed at the end of the module."""
    with ExitStack() as stack:

        def start_one(config: PythonEngineConfig) -> DynamicEngine:
            engine = DynamicEngine(config)
            stack.callback(engine.destroy)
            return engine

        yield start_one


@pytest.fixture(scope="module")
def engine(start: Start, tiny_llama: Path) -> DynamicEngine:
    """An engine shared by the tests that do not stop it."""
    engine = start(make_dynamic_config(tiny_llama))
    engine.wait_ready()
    return engine


def test_greedy_tokens_equal_those_of_transformers_with_random_arrivals(
    engine: DynamicEngine, answers: list[Answer]
) -> None:
    rng = random.Random(3)
    streams = {}
    for i in rng.sample(range(len(answers)), len(answers)):
        streams[i] = engine.submit(f"arrival {i}", answers[i].prompt, 16)
        if rng.random() < 0.3:
            engine.stats()  # time passes
    for i, stream in streams.items():
        outputs = collect(stream)
        assert tuple(tokens_of(outputs)) == answers[i].tokens, len(answers[i].prompt)
        assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_aborted_requests_do_not_affect_the_others(engine: DynamicEngine, answers: list[Answer]) -> None:
    before = engine.stats().counters["lmi_requests_aborted_total"]
    process = _generating_process(engine)
    _suspend_while_idle(process)  # no request finishes before it is aborted
    leaving = [f"leaving {i}" for i in range(7)]
    for i, name in enumerate(leaving):
        engine.submit(name, [i + 1], _LONG)
    prompt, expected = answers[3]
    staying = engine.submit("staying", prompt, 16)
    wait_until(lambda: engine.stats().gauges["lmi_requests_running"] > 0)
    waiting = engine.submit("waiting", [9], _LONG)
    for name in (*leaving, "waiting"):
        engine.client.abort(name, AbortReason.CLIENT_LEFT)
    process.send_signal(signal.SIGCONT)
    assert tuple(tokens_of(collect(staying))) == expected
    wait_until(lambda: engine.stats().gauges["lmi_requests_running"] == 0)
    stats = engine.stats()
    assert stats.counters["lmi_requests_aborted_total"] == before + 8
    assert stats.gauges["lmi_requests_waiting"] == 0
    assert waiting.next(0.0) is None


def test_stats_describe_the_engine(engine: DynamicEngine) -> None:
    info = engine.stats().info
    assert (info.engine, info.device, info.dtype, info.max_num_seqs) == ("Python", "cpu", "fp32", 8)
    assert (info.kv_capacity_tokens, info.block_size, info.paged_attention) == (0, 0, False)
    assert set(info.load_seconds) == {"dispatcher", "imports", "weights", "warm-up"}


def test_a_killed_process_is_restarted_and_drain_leaves_no_process(
    engine: DynamicEngine, answers: list[Answer]
) -> None:
    """This must be the last test of the shared engine, because it stops the engine."""
    restarts = engine.stats().counters["lmi_generator_restarts_total"]
    victim = _generating_process(engine)
    first, running = _suspend_in_a_batch(engine, victim)
    waiting = engine.submit("later", answers[6].prompt, 16)
    wait_until(lambda: engine.stats().gauges["lmi_requests_waiting"] == 1)
    victim.send_signal(signal.SIGKILL)
    for tokens in ([first, *collect(running[0])], collect(running[1])):
        assert len(tokens_of(tokens)) == _LONG, "no token is lost or sent twice"
        assert tokens[-1].finish_reason is FinishReason.LENGTH
    assert tuple(tokens_of(collect(waiting))) == answers[6].tokens
    assert engine.stats().counters["lmi_generator_restarts_total"] == restarts + 1
    _check_drain(engine, victim, answers)


@pytest.mark.long
def test_a_suspended_process_is_noticed_and_replaced(
    start: Start, tiny_llama: Path, answers: list[Answer]
) -> None:
    engine = start(make_dynamic_config(tiny_llama, batch_timeout=3.0))
    engine.wait_ready()
    victim = _generating_process(engine)
    victim.send_signal(signal.SIGSTOP)
    stream = engine.submit("a", [1, 2, 3], _LONG)
    wait_until(lambda: not engine.health.ready)
    end = collect(stream)[-1]
    assert end.error_kind == "deadline_exceeded"
    assert "3 s (option.predict_timeout)" in end.error_message
    wait_until(lambda: engine.health.ready)
    _check_drain(engine, victim, answers)


@pytest.mark.long
def test_the_generating_process_does_not_outlive_the_dispatcher(start: Start, tiny_llama: Path) -> None:
    engine = start(make_dynamic_config(tiny_llama))
    engine.wait_ready()
    generator = _generating_process(engine)
    generator.parent().send_signal(signal.SIGKILL)
    assert processes.wait_exited([generator], 60) == []


def _suspend_while_idle(process: psutil.Process) -> None:
    """Suspend the process once it waits for a batch. It reports the end of a batch after the last token."""
    wait_until(lambda: process.status() == psutil.STATUS_SLEEPING)
    process.send_signal(signal.SIGSTOP)


def _suspend_in_a_batch(
    engine: DynamicEngine, process: psutil.Process
) -> tuple[RequestOutput, list[ClientStream]]:
    """Suspend the process while it computes two requests. Return the first token of the first one and both streams."""
    for attempt in itertools.count():
        streams = [engine.submit(f"running {attempt}.{i}", [1, 2, 3], _LONG) for i in range(2)]
        first = next_output(streams[0])
        process.send_signal(signal.SIGSTOP)
        engine.stats()  # before its next reply the dispatcher reads all messages sent before the suspension
        if engine.stats().gauges["lmi_requests_running"] == 2:
            return first, streams
        # The batch has already finished, or there are two batches: try again.
        process.send_signal(signal.SIGCONT)
        for stream in streams:
            collect(stream)
    raise AssertionError  # unreachable


def _generating_process(engine: DynamicEngine) -> psutil.Process:
    process = engine.generating_process()
    assert process is not None
    return process


def _check_drain(engine: DynamicEngine, victim: psutil.Process, answers: list[Answer]) -> None:
    """Check that requests in flight finish during a drain, and that no process is left."""
    successor = _generating_process(engine)
    assert successor != victim
    streams = [engine.submit(f"last {i}", prompt, 16) for i, (prompt, _) in enumerate(answers)]
    first = next_output(streams[0])
    engine.stats()  # all requests have arrived; later ones would be rejected
    for process in (successor, successor.parent()):
        process.terminate()  # as systemd does
    engine.drain(60.0)
    outputs = [[first, *collect(streams[0])], *(collect(stream) for stream in streams[1:])]
    assert [tuple(tokens_of(each)) for each in outputs] == [answer.tokens for answer in answers]
    assert engine.wait_exit(600) == 0, engine.log
    assert engine.health.state is EngineState.STOPPED
    assert processes.wait_exited([victim, successor], 60) == []


@pytest.mark.long
def test_a_bad_model_folder_is_reported_on_the_status_board(start: Start, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    engine = start(make_dynamic_config(missing))
    assert engine.wait_exit(600) == 1
    assert engine.health.state is EngineState.FAILED
    assert str(missing) in engine.health.reason
    assert engine.health.reason in engine.log
