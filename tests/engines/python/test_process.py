"""engine=Python with real processes: tokens, aborts, crashes and shutdown."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from engines.client import ClientStream
from engines.core import AbortReason, FinishReason, RequestOutput
from engines.health import EngineState
from tests.engines.conftest import Answer
from tests.support import processes
from tests.support.dynamic_engine import DynamicEngine, make_dynamic_config
from tests.support.engine_process import VOCAB_SIZE, collect, next_output, tokens_of
from tests.support.waiting import wait_until

_LONG = 110
"""Number of tokens of a request that runs long enough for the test to interfere."""


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Iterator[DynamicEngine]:
    """An engine shared by the tests that do not stop it."""
    engine = DynamicEngine(make_dynamic_config(tiny_llama))
    try:
        engine.wait_ready()
        yield engine
    finally:
        engine.destroy()


def _batch_sizes(engine: DynamicEngine) -> tuple[int, float]:
    """Return (number of batches, sum of their sizes)."""
    (histogram,) = [h for h in engine.stats().histograms if h.name == "lmi_batch_size"]
    return sum(histogram.counts), histogram.sum


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


def test_concurrent_requests_share_a_batch(engine: DynamicEngine, answers: list[Answer]) -> None:
    before = _batch_sizes(engine)
    process = _generating_process(engine)
    _suspend_while_idle(process)  # all eight requests wait when the previous batch ends
    alone = engine.submit("alone", [1], 4)
    wait_until(lambda: engine.stats().gauges["lmi_requests_running"] == 1)
    streams = [engine.submit(f"together {i}", prompt, 4) for i, (prompt, _) in enumerate(answers[:8])]
    wait_until(lambda: engine.stats().gauges["lmi_requests_waiting"] == 8)
    process.send_signal(signal.SIGCONT)
    collect(alone)
    first = [next_output(stream) for stream in streams]
    assert not any(output.finished for output in first), "tokens are streamed"
    for stream in streams:
        collect(stream)
    after = _batch_sizes(engine)
    assert (after[0] - before[0], after[1] - before[1]) == (2, 1 + 8)


def test_a_bad_request_fails_alone(engine: DynamicEngine, answers: list[Answer]) -> None:
    prompt, expected = answers[3]
    good = [engine.submit(f"good {i}", prompt, 16) for i in range(3)]
    bad = engine.submit("bad", [1, VOCAB_SIZE], 16)
    (end,) = collect(bad)
    assert end.error_kind == "invalid_request"
    assert all(tuple(tokens_of(collect(stream))) == expected for stream in good)
    (refusal,) = collect(engine.submit("too long", range(100), 29))
    assert refusal.error_kind == "invalid_request"
    assert "128" in refusal.error_message


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
    # A named pipe delays the configuration, so the restart does not finish before the test has observed it.
    config = engine.folder / "engine.json"
    text = config.read_text(encoding="utf-8")
    config.unlink()
    os.mkfifo(config)
    victim.send_signal(signal.SIGKILL)
    wait_until(lambda: engine.health.state is EngineState.STARTING)
    assert "SIGKILL" in engine.health.reason
    (early,) = collect(engine.submit("early", [1], 4))
    assert early.error_kind == "unavailable"
    _write_pipe(config, text)
    for tokens in ([first, *collect(running[0])], collect(running[1])):
        assert len(tokens_of(tokens)) == _LONG, "no token is lost or sent twice"
        assert tokens[-1].finish_reason is FinishReason.LENGTH
    assert tuple(tokens_of(collect(waiting))) == answers[6].tokens
    assert engine.stats().counters["lmi_generator_restarts_total"] == restarts + 1
    _check_drain(engine, victim, answers)


@pytest.mark.long
def test_a_suspended_process_is_noticed_and_replaced(tiny_llama: Path, answers: list[Answer]) -> None:
    engine = DynamicEngine(make_dynamic_config(tiny_llama, batch_timeout=3.0))
    try:
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
    finally:
        engine.destroy()


@pytest.mark.long
def test_the_generating_process_does_not_outlive_the_dispatcher(tiny_llama: Path) -> None:
    engine = DynamicEngine(make_dynamic_config(tiny_llama))
    try:
        engine.wait_ready()
        generator = _generating_process(engine)
        generator.parent().send_signal(signal.SIGKILL)
        assert processes.wait_exited([generator], 60) == []
    finally:
        engine.destroy()


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
        process.send_signal(
            signal.SIGCONT
        )  # the batch has already finished, or there are two batches: try again
        for stream in streams:
            collect(stream)
    raise AssertionError  # unreachable


def _write_pipe(pipe: Path, text: str) -> None:
    """Write to a named pipe once it has a reader."""

    def written() -> bool:
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no reader yet
            return False
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return True

    wait_until(written)


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
    engine.drain(60.0)
    outputs = [[first, *collect(streams[0])], *(collect(stream) for stream in streams[1:])]
    assert [tuple(tokens_of(each)) for each in outputs] == [answer.tokens for answer in answers]
    assert engine.wait_exit(600) == 0, engine.log
    assert engine.health.state is EngineState.STOPPED
    assert processes.wait_exited([victim, successor], 60) == []


@pytest.mark.long
def test_a_bad_model_folder_is_reported_on_the_status_board(tiny_llama: Path, tmp_path: Path) -> None:
    config = make_dynamic_config(tiny_llama)
    missing = tmp_path / "missing"
    engine = DynamicEngine(replace(config, model=replace(config.model, path=str(missing))))
    try:
        assert engine.wait_exit(600) == 1
        assert engine.health.state is EngineState.FAILED
        assert str(missing) in engine.health.reason
        assert engine.health.reason in engine.log
    finally:
        engine.destroy()
