"""engine=Python as processes: right tokens, and a decent end whatever happens."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engines.core import AbortReason, FinishReason, SamplingParams
from engines.health import EngineState
from tests.support import processes
from tests.support.dynamic_engine import DynamicEngine, make_dynamic_config
from tests.support.engine_process import VOCAB_SIZE, collect, next_output, save_tiny_llama, tokens_of
from tests.support.paths import REPO_ROOT, child_environment
from tests.support.tiny_architectures import generate_alone

Answer = tuple[list[int], list[int]]
_LONG = 110
"""Tokens of a request that is still running when the test has something else to do."""


def _wait(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="module")
def answers(folder: Path) -> list[Answer]:
    """12 prompts of 1 to 90 tokens, each with what transformers makes of it alone."""
    import torch
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        rng = random.Random(5)
        lengths = [1, 2, 7, 8, 9, 15, 16, 17, 33, 40, 64, 90]
        prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]
        return [(prompt, generate_alone(model, prompt, 16)) for prompt in prompts]


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[DynamicEngine]:
    """One engine for all tests that leave it as it was."""
    engine = DynamicEngine(make_dynamic_config(folder))
    try:
        engine.wait_ready()
        yield engine
    finally:
        engine.destroy()


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., DynamicEngine]]:
    """Start engines that end with the test. Each is ready when this returns."""
    engines: list[DynamicEngine] = []

    def start_one(**changes: float) -> DynamicEngine:
        engines.append(DynamicEngine(make_dynamic_config(folder, **changes)))  # type: ignore[arg-type]
        engines[-1].wait_ready()
        return engines[-1]

    yield start_one
    for engine in engines:
        engine.destroy()


def _batch_sizes(engine: DynamicEngine) -> tuple[int, float]:
    """(number of batches, sum of their sizes)."""
    (histogram,) = [h for h in engine.stats().histograms if h.name == "lmi_batch_size"]
    return sum(histogram.counts), histogram.sum


def test_greedy_tokens_equal_those_of_transformers_with_random_arrivals(
    engine: DynamicEngine, answers: list[Answer]
) -> None:
    rng = random.Random(3)
    streams = {}
    for i in rng.sample(range(len(answers)), len(answers)):
        streams[i] = engine.submit(f"arrival {i}", answers[i][0], 16)
        if rng.random() < 0.3:
            engine.stats()  # time passes
    for i, stream in streams.items():
        outputs = collect(stream)
        assert tokens_of(outputs) == answers[i][1], len(answers[i][0])
        assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_what_comes_together_leaves_together(engine: DynamicEngine, answers: list[Answer]) -> None:
    before = _batch_sizes(engine)
    streams = [engine.submit(f"together {i}", prompt, 4) for i, (prompt, _) in enumerate(answers[:8])]
    first = [next_output(stream) for stream in streams]
    assert not any(output.finished for output in first), "tokens come as they are made"
    for stream in streams:
        collect(stream)
    after = _batch_sizes(engine)
    assert (after[0] - before[0], after[1] - before[1]) == (1, 8)


def test_rows_with_differing_parameters_get_what_they_get_alone(
    engine: DynamicEngine, answers: list[Answer]
) -> None:
    prompt = answers[4][0]
    stop = answers[4][1][3]
    asked = [
        SamplingParams(16),
        SamplingParams(16, stop_token_ids=(stop,)),
        SamplingParams(12, temperature=1.3, seed=1),
        SamplingParams(12, temperature=1.3, seed=2, logprobs=True),
        SamplingParams(9, temperature=0.8, top_k=7, top_p=0.9, seed=3),
        SamplingParams(20, repetition_penalty=1.5),
    ]
    alone = [collect(engine.ask(f"alone {i}", prompt, each)) for i, each in enumerate(asked)]
    streams = [engine.ask(f"shared {i}", prompt, each) for i, each in enumerate(asked)]
    shared = [collect(stream) for stream in streams]
    for one, other in zip(alone, shared, strict=True):
        assert tokens_of(one) == tokens_of(other)
        assert one[-1].finish_reason is other[-1].finish_reason
    assert tokens_of(shared[2]) != tokens_of(shared[3]), "seeds decide"
    assert all(output.logprobs for output in shared[3])
    assert tokens_of(shared[1]) == answers[4][1][:4]


def test_a_bad_item_fails_alone(engine: DynamicEngine, answers: list[Answer]) -> None:
    prompt, expected = answers[3]
    good = [engine.submit(f"good {i}", prompt, 16) for i in range(3)]
    bad = engine.submit("bad", [1, VOCAB_SIZE], 16)
    (end,) = collect(bad)
    assert end.error_kind == "invalid_request"
    assert all(tokens_of(collect(stream)) == expected for stream in good)
    (refusal,) = collect(engine.submit("too long", range(100), 29))
    assert refusal.error_kind == "invalid_request"
    assert "128" in refusal.error_message


def test_aborted_requests_do_not_disturb_those_that_stay(
    engine: DynamicEngine, answers: list[Answer]
) -> None:
    before = engine.stats().counters["lmi_requests_aborted_total"]
    leaving = {f"leaving {i}": engine.submit(f"leaving {i}", [i + 1], _LONG) for i in range(7)}
    prompt, expected = answers[3]
    staying = engine.submit("staying", prompt, 16)
    next_output(leaving["leaving 0"])
    waiting = engine.submit("waiting", [9], _LONG)
    for name in (*leaving, "waiting"):
        engine.client.abort(name, AbortReason.CLIENT_LEFT)
    assert tokens_of(collect(staying)) == expected
    _wait(lambda: engine.stats().gauges["lmi_requests_running"] == 0)
    stats = engine.stats()
    assert stats.counters["lmi_requests_aborted_total"] == before + 8
    assert stats.gauges["lmi_requests_waiting"] == 0
    assert waiting.next(0.0) is None


def test_the_engine_tells_what_it_is(engine: DynamicEngine) -> None:
    info = engine.stats().info
    assert (info.engine, info.device, info.dtype, info.max_num_seqs) == ("Python", "cpu", "fp32", 8)
    assert (info.kv_capacity_tokens, info.block_size, info.paged_attention) == (0, 0, False)
    assert set(info.load_seconds) == {"dispatcher", "imports", "weights", "warm-up"}


def test_a_killed_process_comes_back_and_does_not_outlive_the_dispatcher(
    start: Callable[..., DynamicEngine], answers: list[Answer]
) -> None:
    engine = start(batch_size=2)
    victim = engine.generating_process()
    assert victim is not None
    running = [engine.submit(f"running {i}", [1, 2, 3], _LONG) for i in range(2)]
    prompt, expected = answers[6]
    waiting = engine.submit("waiting", prompt, 16)
    first = next_output(running[0])
    victim.send_signal(signal.SIGKILL)
    _wait(lambda: engine.health.state is EngineState.STARTING)
    assert "SIGKILL" in engine.health.reason
    (early,) = collect(engine.submit("early", [1], 4))
    assert early.error_kind == "unavailable"
    for tokens in ([first, *collect(running[0])], collect(running[1])):
        assert len(tokens_of(tokens)) == _LONG, "none is lost, none comes twice"
        assert tokens[-1].finish_reason is FinishReason.LENGTH
    assert tokens_of(collect(waiting)) == expected
    assert engine.health.ready
    assert engine.stats().counters["lmi_generator_restarts_total"] == 1
    successor = engine.generating_process()
    assert successor not in (None, victim)
    assert successor is not None
    successor.parent().send_signal(signal.SIGKILL)
    assert processes.wait_gone([successor], 5) == []


def test_a_stopped_process_is_noticed_and_replaced_and_drain_leaves_nothing(
    start: Callable[..., DynamicEngine], answers: list[Answer]
) -> None:
    engine = start(batch_size=4, batch_timeout=3.0)
    victim = engine.generating_process()
    assert victim is not None
    stream = engine.submit("a", [1, 2, 3], _LONG)
    next_output(stream)
    victim.send_signal(signal.SIGSTOP)
    _wait(lambda: not engine.health.ready, 9.0)
    end = collect(stream)[-1]
    assert end.error_kind == "deadline_exceeded"
    assert "3 s (option.predict_timeout)" in end.error_message
    _wait(lambda: engine.health.ready)
    successor = engine.generating_process()
    assert successor is not None
    streams = [engine.submit(str(i), prompt, 16) for i, (prompt, _) in enumerate(answers)]
    first = next_output(streams[0])
    engine.drain(30.0)
    outputs = [[first, *collect(streams[0])], *(collect(stream) for stream in streams[1:])]
    assert [tokens_of(each) for each in outputs] == [tokens for _, tokens in answers]
    assert engine.wait_exit(20) == 0, engine.log
    assert engine.health.state is EngineState.STOPPED
    assert processes.wait_gone([victim, successor], 5) == []


def test_a_bad_model_folder_is_told_on_the_board(folder: Path, tmp_path: Path) -> None:
    config = make_dynamic_config(folder)
    missing = tmp_path / "missing"
    engine = DynamicEngine(replace(config, model=replace(config.model, path=str(missing))))
    try:
        assert engine.wait_exit(60) == 1
        assert engine.health.state is EngineState.FAILED
        assert str(missing) in engine.health.reason
        assert engine.health.reason in engine.log
    except subprocess.TimeoutExpired:
        pytest.fail(f"it does not end\n{engine.log}")
    finally:
        engine.destroy()


def test_the_dispatcher_loads_no_torch() -> None:
    program = (
        "import sys, engines.python.dispatcher; print(*sorted({n.partition('.')[0] for n in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPO_ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "zmq" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "gevent", "flask"}
