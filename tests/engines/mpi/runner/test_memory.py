"""Measurement of memory in use and free memory, and the error when the KV cache does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engines.mpi.runner import memory
from engines.mpi.runner.decode_graphs import batch_sizes, graphs_bytes
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.loading import LoadedModel, load_model
from engines.mpi.scheduler.step_plan import WANT_LOGITS
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch
from tests.support.engine_process import make_config
from tests.support.thread_ranks import ThreadCommunicator, run_ranks
from tests.support.tiny_models import save_llama

CPU = torch.device("cpu")
MIB = 1024**2
GIB = 1024**3


def _touch(count: int) -> torch.Tensor:
    return torch.ones(count // 4)


@pytest.mark.parametrize("peak_can_be_reset", [True, False])
def test_the_peak_includes_memory_that_was_freed_again(
    peak_can_be_reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not peak_can_be_reset:
        monkeypatch.setattr(memory, "_reset_peak", lambda: False)

    def work() -> None:
        _touch(150 * MIB)
        _touch(50 * MIB)

    found = memory.measure_peak(CPU, work)
    assert found >= 140 * MIB
    if peak_can_be_reset:
        assert found <= 180 * MIB
        # Earlier peaks and memory that was in use before do not count.
        kept = _touch(100 * MIB)
        assert memory.measure_peak(CPU, lambda: None) <= 20 * MIB
        assert kept[0] == 1


def test_bytes_in_use_follow_allocations() -> None:
    before = memory.bytes_in_use(CPU)
    tensor = _touch(100 * MIB)
    assert abs(memory.bytes_in_use(CPU) - before - 100 * MIB) < 20 * MIB
    del tensor
    assert abs(memory.bytes_in_use(CPU) - before) < 20 * MIB


@pytest.mark.parametrize(
    ("utilization", "others", "expected"),
    [
        (0.9, 0, 90 - 0.5 - 16 - 2),
        (0.45, 0, 45 - 0.5 - 16 - 2),
        (0.45, 45, 45 - 0.5 - 16 - 2),  # another model's share
        (0.9, 45, 100 - 45.5 - 0.25 - 16 - 2),  # what it leaves
        (0.1, 0, 10 - 0.5 - 16 - 2),
    ],
)
def test_a_gpus_cache_gets_this_process_share_of_the_memory(
    utilization: float, others: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU of 100 GiB with 16 GiB of weights; the allocator holds 17, the driver's context 0.5."""
    free = (100 - 17 - 0.5 - others) * GIB
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free), 100 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 17 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 16 * GIB)
    found = memory.gpu_cache_bytes(torch.device("cuda", 0), utilization, 2 * GIB)
    assert found == pytest.approx(expected * GIB)


def test_a_cache_that_fits_exactly_is_accepted() -> None:
    memory.require_fit(3 * GIB, GIB, 9 * GIB, free=4 * GIB, num_tokens=7)
    with pytest.raises(ValueError):
        memory.require_fit(3 * GIB + 1, GIB, 9 * GIB, free=4 * GIB, num_tokens=7)


def test_the_error_names_the_option_and_all_numbers() -> None:
    with pytest.raises(ValueError, match=r"option.kv_cache_gb=4 does not fit") as refusal:
        memory.require_fit(4 * GIB, GIB // 2, GIB // 4, free=3 * GIB, num_tokens=1024)
    for part in ("step of 1024 tokens", "takes 0.5 GiB", "needs 4.5 GiB", "0.25 GiB", "3 GiB are free"):
        assert part in str(refusal.value)
    assert "set option.kv_cache_gb to at most 2.50" in str(refusal.value)
    with pytest.raises(ValueError, match=r"no memory is left .*: lower option.max_num_batched_tokens"):
        memory.require_fit(4 * GIB, 5 * GIB, GIB, free=3 * GIB, num_tokens=1024)


@pytest.mark.parametrize(
    ("cache_bytes", "gpu_bytes", "message"),
    [
        pytest.param(
            80 * 192,
            0,
            "the KV cache holds 80 tokens, but option.max_model_len is 128; lower option.max_model_len, or raise "
            "option.kv_cache_gb",
            id="a fixed size",
        ),
        pytest.param(
            1,
            0,
            "the KV cache holds 0 tokens, but option.max_model_len is 128; raise option.kv_cache_gb",
            id="a fixed size below one block",
        ),
        pytest.param(
            None,
            80 * 192,
            "the KV cache holds 80 tokens, but option.max_model_len is 128; lower option.max_model_len, or raise "
            "option.gpu_memory_utilization",
            id="the rest of a GPU",
        ),
        pytest.param(
            None,
            -1,
            "no memory is left for the KV cache: the weights take 3 GiB and the largest step 1.1 GiB; raise "
            "option.tensor_parallel_degree or option.gpu_memory_utilization, lower option.max_num_batched_tokens, or "
            "use a larger GPU",
            id="a GPU without a rest",
        ),
    ],
)
def test_a_cache_too_small_for_the_longest_sequence_is_refused_with_the_options_that_help(
    cache_bytes: int | None, gpu_bytes: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_llama(tmp_path)
    config = make_config(tmp_path)
    config = replace(config, cache=replace(config.cache, kv_cache_bytes=cache_bytes))
    in_use = iter([0, 3 * GIB])
    monkeypatch.setattr(memory, "bytes_in_use", lambda device: next(in_use))
    monkeypatch.setattr(memory, "measure_peak", lambda device, work: GIB)
    monkeypatch.setattr(memory, "gpu_cache_bytes", lambda *arguments: gpu_bytes)
    with pytest.raises(ValueError) as refusal:
        load_model(config, Communicator(), CPU, Stopwatch(lambda: 0.0))
    assert str(refusal.value) == message


@pytest.mark.parametrize("degree", [1, 2])
def test_a_cache_larger_than_free_memory_is_refused(
    tmp_path: Path, degree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check comes before the allocation. Ranks on one machine share its free memory."""
    save_llama(tmp_path)
    config = make_config(tmp_path)
    config = replace(config, cache=replace(config.cache, kv_cache_bytes=3 * GIB))

    def rank(comm: ThreadCommunicator) -> LoadedModel:
        return load_model(config, comm, CPU, Stopwatch(lambda: 0.0))

    monkeypatch.setattr(memory, "measure_peak", lambda device, work: work() or GIB // degree)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 4 * GIB)
    with pytest.raises(ValueError, match=r"option.kv_cache_gb=3 does not fit: .* takes 1.1 GiB"):
        run_ranks(degree, rank)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 5 * GIB)
    runners = run_ranks(degree, rank)
    assert sum(runner.cache.num_bytes for runner in runners) == pytest.approx(3 * GIB, rel=1e-3)
    settings = config.scheduler.settings
    assert all(
        runner.largest_step == LargestStep.of(settings, config.model.max_model_len) for runner in runners
    )


def test_the_report_lists_the_memory_taken(tmp_path: Path) -> None:
    save_llama(tmp_path, hidden_size=1152, intermediate_size=3000, head_dim=128)
    model = load_model(make_config(tmp_path, num_blocks=900), Communicator(), CPU, Stopwatch(lambda: 0.0))
    taken = model.report.memory
    assert taken["weights"] == pytest.approx(model.report.owned_bytes, rel=0.2)
    assert taken["weights"] > 60 * MIB
    assert taken["KV cache"] == model.cache.num_bytes
    assert 0 < taken["activations"] < 200 * MIB


@pytest.mark.parametrize(("tokens", "seqs"), [(1, 1), (1, 9), (100, 1), (100, 4), (1000, 3), (300, 256)])
def test_the_largest_steps_reach_the_limits_exactly(tokens: int, seqs: int) -> None:
    chunks, singles = LargestStep(tokens, seqs, max_model_len=128).plans(block_size=8)
    for plan in (chunks, singles):
        assert plan.num_tokens == sum(plan.query_lens) <= tokens
        assert len(plan.rows) <= seqs
        ends = [start + count for start, count in zip(plan.starts, plan.query_lens, strict=True)]
        assert ends == [128] * len(plan.rows)
    assert chunks.num_tokens == min(tokens, seqs * 127)
    assert singles.num_sampled == min(tokens, seqs)
    assert set(singles.wants) == {WANT_LOGITS}


class _Gpu:
    """A fake GPU. Each graph takes driver memory of its own; allocator memory is shared by all graphs."""

    SHARED, PER_GRAPH = 900 * MIB, 25 * MIB

    def __init__(self) -> None:
        self.reserved = 0
        self.outside = 500 * MIB
        self.num_graphs = 0

    def capture(self, size: int) -> None:
        self.reserved = self.SHARED
        self.outside += self.PER_GRAPH
        self.num_graphs += 1

    @property
    def taken(self) -> int:
        return self.reserved + self.outside


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> _Gpu:
    found = _Gpu()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: found.reserved)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (141 * GIB - found.taken, 141 * GIB))
    return found


def test_predicted_graph_memory_equals_that_of_all_graphs(gpu: _Gpu) -> None:
    sizes = batch_sizes(256)
    assert len(sizes) == 35

    def held(size: int, max_outside: int) -> int:
        return memory.measure_held(torch.device("cuda"), lambda: gpu.capture(size), max_outside)

    predicted = graphs_bytes(sizes, held)
    assert gpu.num_graphs == 2
    real = _Gpu()
    before = real.taken
    for size in reversed(sizes):
        real.capture(size)
    assert predicted == real.taken - before


def test_memory_taken_by_another_process_does_not_count_as_graph_memory(gpu: _Gpu) -> None:
    def work() -> None:
        gpu.capture(1)
        gpu.outside += 40 * GIB

    assert memory.measure_held(torch.device("cuda"), work, 256 * MIB) < 2 * GIB


@pytest.mark.parametrize("disturbed", [256, 248])
def test_memory_taken_by_another_process_is_not_counted_once_for_each_graph(
    gpu: _Gpu, disturbed: int
) -> None:
    sizes = batch_sizes(256)

    def held(size: int, max_outside: int) -> int:
        def work() -> None:
            gpu.capture(size)
            if size == disturbed:
                gpu.outside += 40 * GIB

        return memory.measure_held(torch.device("cuda"), work, max_outside)

    real = _Gpu.SHARED + len(sizes) * _Gpu.PER_GRAPH
    assert real <= graphs_bytes(sizes, held) < real + 512 * MIB
