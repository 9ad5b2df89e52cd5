"""The engine as processes: correct tokens at every tensor-parallel degree, and an orderly shutdown."""

from __future__ import annotations

import itertools
import random
import shutil
import signal
import time
from collections.abc import Iterator
from ctypes import c_double
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.client import ClientStream
from engines.core import AbortReason, FinishReason, RequestOutput
from engines.health import EngineState, StatusBoard
from engines.models.tensor_files import BadCheckpoint
from engines.mpi import worker
from engines.mpi.worker import _warm_up_request
from tests.engines.conftest import Answer
from tests.support import processes
from tests.support.core_lab import CoreLab, Mode, run_all
from tests.support.engine_process import (
    VOCAB_SIZE,
    EngineProcess,
    collect,
    make_config,
    next_output,
    tokens_of,
)
from tests.support.waiting import wait_until

_SHAPES = [(1, True), (2, False)]
"""Tensor-parallel degree, and whether attention is paged. `make verify` covers all combinations."""
_LONG = 100
"""Output tokens of a request that must still be running when the test continues."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(s, marks=[pytest.mark.mpi] if s[0] > 1 else []) for s in _SHAPES],
    ids=lambda shape: f"degree {shape[0]}, {'paged' if shape[1] else 'contiguous'}",
)
def engine(request: pytest.FixtureRequest, tiny_llama: Path) -> Iterator[EngineProcess]:
    """One engine of each shape, shared by all tests."""
    degree, paged = request.param
    engine = EngineProcess(make_config(tiny_llama, degree, paged))
    try:
        engine.wait_ready()
        yield engine
    finally:
        engine.destroy()


def _check_all_free(engine: EngineProcess) -> None:
    gauges = engine.stats().gauges
    assert (
        gauges["lmi_kv_blocks_free"] + gauges["lmi_kv_blocks_cached"] == gauges["lmi_kv_blocks_total"] == 40
    )
    assert gauges["lmi_requests_running"] == gauges["lmi_requests_waiting"] == 0


def test_a_single_rank_is_rank_0_inside_another_mpi_job(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {}
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setattr(worker.logging, "basicConfig", settings.update)
    monkeypatch.setattr(worker, "make_communicator", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        worker._start(make_config(tiny_llama), StatusBoard.create(tmp_path / "status", 1), tmp_path)
    assert "engine rank 0" in settings["format"]


def test_native_code_of_a_rank_writes_the_heartbeat_of_its_board(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loading(Exception):
        """Raised instead of loading the model."""

    def load(*arguments: object) -> None:
        raise Loading

    places: list[c_double] = []
    board = StatusBoard.create(tmp_path / "status", 1)
    monkeypatch.setattr(worker, "shared_team", lambda: SimpleNamespace(show_alive_at=places.append))
    monkeypatch.setattr(worker, "load_model", load)
    with pytest.raises(Loading):
        worker._start(make_config(tiny_llama), board, tmp_path)
    (place,) = places
    place.value = time.monotonic() - 60
    assert 60 <= board.read().heartbeat_age < 65


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("option.kv_cache_gb=4 does not fit"), "option.kv_cache_gb=4 does not fit"),
        (BadCheckpoint("a.safetensors is cut short"), "a.safetensors is cut short"),
        (ValueError(), "ValueError: "),
        (KeyError("bias"), "KeyError: 'bias'"),
        (MemoryError("no page"), "MemoryError: no page"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "UnicodeDecodeError: 'utf-8' codec can't decode"),
    ],
    ids=["value", "checkpoint", "no text", "key", "memory", "foreign value"],
)
def test_the_status_board_names_the_class_of_foreign_errors_only(
    error: Exception, reason: str, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*arguments: object) -> None:
        raise error

    def exit_with(code: int) -> None:
        raise SystemExit(code)

    board = StatusBoard.create(tmp_path / "status", 1)
    (tmp_path / "config").write_text(make_config(tiny_llama).to_json())
    arguments = SimpleNamespace(status=tmp_path / "status", config=tmp_path / "config", address="")
    monkeypatch.setattr(worker, "engine_arguments", lambda *_: arguments)
    monkeypatch.setattr(worker, "_start", start)
    monkeypatch.setattr(worker.os, "_exit", exit_with)
    with pytest.raises(SystemExit, match="1"):
        worker.main([])
    assert board.read().state is EngineState.FAILED
    assert board.read().reason.startswith(reason)


def test_greedy_tokens_equal_those_of_transformers_with_random_arrivals(
    engine: EngineProcess, answers: list[Answer]
) -> None:
    """Requests arrive while others are at any point of their prompts and outputs. They outnumber the places."""
    numbers = random.Random(3)
    order = numbers.sample(range(len(answers)), len(answers))
    streams: dict[int, ClientStream] = {}
    outputs: dict[int, list[RequestOutput]] = {}
    for i in order:
        answer = answers[i]
        streams[i] = engine.submit(f"arrival {i}", answer.prompt, len(answer.tokens))
        outputs[i] = []
        watched = numbers.choice(list(streams))
        for _ in range(numbers.choice([0, 0, 1, 3])):
            if not (outputs[watched] and outputs[watched][-1].finished):
                outputs[watched].append(next_output(streams[watched]))
    for i, stream in streams.items():
        if not (outputs[i] and outputs[i][-1].finished):
            outputs[i] += collect(stream)
        assert tuple(tokens_of(outputs[i])) == answers[i].tokens, len(answers[i].prompt)
        assert outputs[i][-1].finish_reason is FinishReason.LENGTH
    _check_all_free(engine)


def test_aborted_requests_free_their_blocks(engine: EngineProcess, answers: list[Answer]) -> None:
    """Running and waiting requests are aborted while another request continues."""
    attempts = itertools.count()
    answer = answers[3]

    def all_are_aborted() -> bool:
        """Return False when the first request finished before it was aborted."""
        before = engine.stats().counters
        number = next(attempts)
        names = [f"leaving {number}.{i}" for i in range(10)]
        leaving = [engine.submit(name, range(i + 1), _LONG) for i, name in enumerate(names)]
        next_output(leaving[0])
        staying = engine.submit("staying", answer.prompt, len(answer.tokens))
        for name in names:
            engine.client.abort(name, AbortReason.CLIENT_LEFT)
        assert tuple(tokens_of(collect(staying))) == answer.tokens
        _check_all_free(engine)
        after = engine.stats().counters
        aborted, finished = (
            after[name] - before[name]
            for name in ("lmi_requests_aborted_total", "lmi_requests_finished_total")
        )
        assert aborted + finished == 11
        return aborted == 10

    wait_until(all_are_aborted)


def test_a_token_id_outside_the_vocabulary_fails_only_its_request(
    engine: EngineProcess, answers: list[Answer]
) -> None:
    answer = answers[3]
    staying = engine.submit("staying", answer.prompt, len(answer.tokens))
    (refusal,) = collect(engine.submit("bad", [1, VOCAB_SIZE, 2], 3, prompt_logprobs=1))
    assert refusal.error_kind == "invalid_request"
    assert f"token id {VOCAB_SIZE} at position 1" in refusal.error_message
    assert tuple(tokens_of(collect(staying))) == answer.tokens
    _check_all_free(engine)


def test_the_engine_reports_its_configuration_and_memory(engine: EngineProcess) -> None:
    stats = engine.stats()
    ranks = engine.ranks()
    assert sorted(ranks) == list(range(stats.info.world_size))
    assert (stats.info.kv_capacity_tokens, stats.info.block_size) == (320, 8)
    assert stats.info.kv_capacity_bytes == 320 * 2 * 2 * 3 * 8 * 4
    assert {"imports", "weights", "warm-up"} <= set(stats.info.load_seconds)
    parts = {h.labels["part"] for h in stats.histograms if "part" in h.labels}
    assert parts >= {"schedule", "broadcast", "prepare", "model", "attention", "sample", "update", "send"}

    def memory_lines() -> list[str]:
        return [line for line in engine.log.splitlines(keepends=True) if "memory in bytes" in line]

    # The lines of the other ranks arrive through mpirun.
    wait_until(lambda: "".join(memory_lines()).count("\n") >= stats.info.world_size)
    lines = memory_lines()
    assert len(lines) == stats.info.world_size
    assert all("weights" in line and "activations" in line and "KV cache" in line for line in lines)


@pytest.mark.parametrize(("longest", "prompt", "new_tokens"), [(2, 1, 1), (3, 1, 2), (4, 2, 2), (100, 8, 2)])
def test_the_warm_up_fits_into_the_maximum_sequence_length(
    longest: int, prompt: int, new_tokens: int
) -> None:
    request = _warm_up_request(longest, VOCAB_SIZE)
    assert (len(request.prompt_token_ids), request.sampling.max_new_tokens) == (prompt, new_tokens)
    assert _warm_up_request(longest, 1).prompt_token_ids == (0,)


def test_the_warm_up_runs_with_the_shortest_maximum_sequence_length(tiny_llama: Path, tmp_path: Path) -> None:
    running = CoreLab(tiny_llama, tmp_path, max_model_len=2).start(Mode())
    (tokens,) = run_all(running, [_warm_up_request(2, VOCAB_SIZE)]).values()
    assert len(tokens) == 1


@pytest.mark.mpi
def test_a_damaged_model_is_reported_on_the_status_board(tiny_llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_llama, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    config = make_config(tiny_llama, 2)
    engine = EngineProcess(replace(config, model=replace(config.model, path=str(folder))))
    try:
        assert engine.wait_exit(600) != 0
        assert engine.health.state is EngineState.FAILED
        assert str(folder) in engine.health.reason
        assert engine.health.reason in engine.log
        assert engine.ranks() == {}
    finally:
        engine.destroy()


def test_a_stopped_rank_is_detected_and_a_drain_ends_all_processes(
    engine: EngineProcess, answers: list[Answer]
) -> None:
    """Must be the last test of each engine."""
    ranks = engine.ranks()
    last = ranks[max(ranks)]
    last.send_signal(signal.SIGSTOP)
    wait_until(lambda: not engine.health.ready)
    assert engine.health.state is EngineState.READY
    assert "no progress" in engine.health.describe()
    last.send_signal(signal.SIGCONT)
    wait_until(lambda: engine.health.ready)
    streams = [engine.submit(str(i), a.prompt, len(a.tokens)) for i, a in enumerate(answers)]
    firsts = [next_output(stream) for stream in streams]  # a request that arrives after the drain is refused
    engine.drain(60.0)
    outputs = [[first, *collect(stream)] for first, stream in zip(firsts, streams, strict=True)]
    assert [tuple(tokens_of(each)) for each in outputs] == [answer.tokens for answer in answers]
    assert engine.wait_exit(600) == 0, engine.log
    assert engine.health.state is EngineState.STOPPED
    assert processes.wait_exited(list(ranks.values()), 60) == []
    (refusal,) = collect(engine.submit("late", [1], 1))
    assert refusal.error_kind == "engine_died"
