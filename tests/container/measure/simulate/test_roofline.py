"""Predicted step times, compared with hand calculations and published measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from container.explain.resolve import CannotServe, resolve
from container.explain.target import ServingTarget, device_target, this_machine
from container.machine import Machine
from container.measure.simulate.roofline import Roofline
from container.measure.simulate.server import CannotSimulateError, SimulatedServer, resolve_server
from engines.config import MpiEngineConfig
from lmi_server.config import EngineOptions, LmiConfig
from tests.container.measure.simulate.made_up import EIGHT, LLAMA_8B, write_model

HERE = Machine(cpu_count=8, memory_available_bytes=64 << 30)
H200 = device_target("H200", 1)


def make_server(
    folder: Path, target: ServingTarget = H200, engine: str = "MPI", **options: object
) -> SimulatedServer:
    config = LmiConfig(engine, options=EngineOptions(**options))  # type: ignore[arg-type]
    return resolve_server(config, folder, target)


def decode_seconds(folder: Path, target: ServingTarget, batch: int, context: int, **options: object) -> float:
    """Device time of one decode step."""
    times = Roofline(make_server(folder, target, **options), target)  # type: ignore[arg-type]
    return times.seconds([context - 1] * batch, [1] * batch, batch).device


def test_a_decode_step_reads_all_weights_and_the_kv_cache_once(llama: Path) -> None:
    """Llama-3-8B: 15.0 GB of weights, and 131,072 bytes per token of context."""
    launches = 32 * 10 * 2e-6
    alone = 15.01e9 / (0.75 * 4.8e12) + launches
    assert decode_seconds(llama, H200, 1, 1) == pytest.approx(alone, rel=0.001)
    context = decode_seconds(llama, H200, 32, 1024) - decode_seconds(llama, H200, 32, 1)
    assert context == pytest.approx(32 * 1023 * 131_072 / (0.85 * 4.8e12), rel=1e-6)


def test_decode_times_are_close_to_published_ones(llama: Path) -> None:
    """vLLM on one H100 with batch size 1: 6.44 ms, plus 43.7 ns per token of context."""
    h100 = device_target("H100", 1)
    assert decode_seconds(llama, h100, 1, 1) == pytest.approx(6.44e-3, rel=0.1)
    slope = (decode_seconds(llama, h100, 1, 8001) - decode_seconds(llama, h100, 1, 1)) / 8000
    assert slope == pytest.approx(43.7e-9, rel=0.1)


def test_a_long_prompt_is_compute_bound(llama: Path) -> None:
    """14 GFLOP per token in linear layers, plus causal attention."""
    times = Roofline(make_server(llama), H200)
    seconds = times.seconds([0], [2048], 1)
    linears = 2048 * 13.96e9 / (0.7 * 989.5e12)
    attention = 2048 * 2049 / 2 * 4 * 4096 * 32 / (0.45 * 989.5e12)
    assert seconds.device == pytest.approx(linears + attention, rel=0.03)
    assert seconds.host > 32 * 10 * 5e-6


def test_only_decode_steps_with_graphs_launch_no_kernels_one_by_one(llama: Path) -> None:
    def host_seconds(counts: list[int], **options: object) -> float:
        times = Roofline(make_server(llama, **options), H200)  # type: ignore[arg-type]
        return times.seconds([64] * len(counts), counts, len(counts)).host

    launches = 32 * 10 * 5e-6
    assert host_seconds([1, 1]) < 0.2 * launches
    assert host_seconds([1, 1], enforce_eager=True) == pytest.approx(host_seconds([1, 1]) + launches)
    assert host_seconds([1, 9]) == pytest.approx(host_seconds([1, 1]) + launches)
    # Eager layers of transformers have 33 kernels.
    dynamic = host_seconds([1, 1], engine="Python", batch_size=4)
    assert dynamic == pytest.approx(host_seconds([1, 1]) + 3.3 * launches)


def test_ranks_share_the_weights_and_pay_for_all_reduces(falcon: Path) -> None:
    """Falcon-40B: 82.6 GB, an eighth on each rank. Parallel attention and MLP need one all-reduce per layer."""
    on_eight = decode_seconds(falcon, EIGHT, 1, 1, tensor_parallel_degree=8, dtype="fp16")
    weights = 82.6e9 / 8 / (0.75 * 600e9)
    all_reduces = 61 * (14 * 3e-6 + 2 * 8192 * 14 / 8 / (0.75 * 32e9))
    assert on_eight == pytest.approx(weights + all_reduces + 600 * 2e-6, rel=0.01)


def test_ranks_and_copies_on_a_cpu_share_its_cores(tmp_path: Path) -> None:
    folder, here = write_model(tmp_path / "small", LLAMA_8B | {"num_hidden_layers": 2}), this_machine(HERE)

    def seconds(**options: object) -> float:
        return decode_seconds(folder, here, 4, 100, kv_cache_gb=0.1, **options)

    alone = seconds()
    assert seconds(tensor_parallel_degree=2) > alone
    assert seconds(data_parallel_size=2) > 1.9 * alone


def test_engine_python_computes_in_fp32_on_a_cpu(tmp_path: Path) -> None:
    folder, here = write_model(tmp_path / "small", LLAMA_8B | {"num_hidden_layers": 2}), this_machine(HERE)
    times = {
        dtype: Roofline(make_server(folder, here, engine="Python", dtype=dtype), here)
        .seconds([99], [1], 1)
        .device
        for dtype in ("fp32", "bf16")
    }
    assert times["fp32"] == times["bf16"]


def test_sliding_window_layers_read_at_most_their_window(tmp_path: Path) -> None:
    windowed = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 512}
    folder = write_model(tmp_path / "mistral", LLAMA_8B | windowed)
    assert decode_seconds(folder, H200, 8, 4096) == pytest.approx(
        decode_seconds(folder, H200, 8, 513), rel=1e-9
    )


def test_a_small_batch_reads_few_experts(tmp_path: Path) -> None:
    mixture = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    folder = write_model(tmp_path / "mixtral", LLAMA_8B | mixture | {"vocab_size": 32000})
    seconds = [decode_seconds(folder, H200, batch, 1) - 640e-6 for batch in (1, 32)]
    # Mixtral-8x7B: one token reads 25.5 GB of 93.4 GB.
    assert [value * 0.75 * 4.8e12 / 1e9 for value in seconds] == pytest.approx([25.5, 93.4], rel=0.02)


def test_engine_python_computes_layers_one_after_the_other(falcon: Path) -> None:
    options = {"tensor_parallel_degree": 8, "dtype": "fp16", "batch_size": 4}
    seconds = decode_seconds(falcon, EIGHT, 4, 1, engine="Python", **options)
    assert seconds == pytest.approx(82.6e9 / (0.75 * 600e9), rel=0.03)


def test_the_kv_cache_has_the_size_that_lmi_check_predicts(llama: Path) -> None:
    """On a GPU the KV cache gets the memory that the weights leave free."""
    config = LmiConfig(options=EngineOptions(kv_cache_gb=3.0))
    found = resolve_server(config, llama, this_machine(HERE))
    dummy = replace(config, source=replace(config.source, load_format="dummy"))
    assert found.info.kv_capacity_tokens == resolve(dummy, llama, HERE).kv_capacity_tokens
    assert found.info.kv_capacity_bytes == found.info.kv_capacity_tokens * 2 * 131_072
    on_gpu = make_server(llama, H200)
    assert on_gpu.info.kv_capacity_bytes == on_gpu.info.kv_capacity_tokens * 131_072
    free_bytes = 0.9 * 141e9 - 16.06e9
    assert 0.95 * free_bytes < on_gpu.info.kv_capacity_bytes < free_bytes


def test_configurations_that_cannot_be_simulated_are_refused(falcon: Path) -> None:
    with pytest.raises(CannotServe, match=r"option\.tensor_parallel_degree=5 fits"):
        make_server(falcon, EIGHT, tensor_parallel_degree=2, dtype="fp16")
    with pytest.raises(CannotServe, match="GB are needed, but only 24 GB are available"):
        make_server(falcon, device_target("A10G", 1), engine="Python", dtype="fp16")
    with pytest.raises(CannotSimulateError, match="--device"):
        resolve_server(LmiConfig(), falcon, this_machine(replace(HERE, gpu_count=8)))


def test_only_one_of_several_copies_is_simulated(llama: Path) -> None:
    found = make_server(llama, EIGHT, tensor_parallel_degree=4)
    assert isinstance(found.engine, MpiEngineConfig)
    assert found.copies == 2
    assert found.notes[-1].startswith("only one of 2 copies of the model is simulated")
    assert not any("load_format" in note for note in found.notes)
    assert make_server(llama, EIGHT, tensor_parallel_degree=8).notes == ()


def test_copies_on_a_cpu_share_its_memory(llama: Path) -> None:
    here = this_machine(HERE)
    assert make_server(llama, here, kv_cache_gb=20).copies == 1
    with pytest.raises(CannotServe, match=r"but only 34\.4 GB are available"):
        make_server(llama, here, kv_cache_gb=20, min_workers=2)
