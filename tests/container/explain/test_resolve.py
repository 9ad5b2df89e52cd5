"""`resolve`: computed values for a model on a machine, notes, and refusals."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from container.explain.resolve import CannotServe, Resolved, resolve
from container.machine import Machine
from engines.config import MpiEngineConfig
from lmi_server.config import EngineOptions, LmiConfig
from tests.container.explain.questions import CPU, GIB, GPUS, KV_BYTES_PER_TOKEN, config, make_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path)


def test_unset_options_are_computed_on_a_cpu(model: Path) -> None:
    resolved = resolve(config(), model, CPU)
    engine = resolved.config
    assert (engine.engine, engine.model.path, engine.model.name) == ("MPI", str(model), "some/name")
    assert (engine.model.dtype, engine.model.max_model_len) == ("fp32", 8192)
    parallel = engine.parallel
    assert (parallel.tp_size, parallel.device, parallel.threads_per_rank) == (1, "cpu", 8)
    assert (engine.cache.block_size, engine.cache.kv_cache_bytes) == (16, 4 * GIB)
    assert (engine.cache.paged, engine.cache.prefix_caching) == (True, True)
    settings = engine.scheduler.settings
    assert (settings.max_prefill_tokens, settings.max_num_batched_tokens) == (256, 256)
    assert settings.max_num_seqs == EngineOptions().max_rolling_batch_size
    assert settings.max_waiting == EngineOptions().job_queue_size
    assert engine.scheduler.batch_scheduler_policy == "max_utilization"
    assert set(resolved.origins) == set(resolved.values)
    assert resolved.values["option.kv_cache_gb"] == "4"
    assert all(origin.startswith("computed: ") for origin in resolved.origins.values())


def test_unset_options_are_computed_on_gpus(model: Path) -> None:
    resolved = resolve(config(), model, GPUS)
    engine = resolved.config
    assert (engine.model.dtype, engine.parallel.device) == ("bf16", "cuda")
    assert engine.parallel.tp_size == 3
    reason = "computed: the model has 3 KV heads, and there are 4 GPUs"
    assert resolved.origins["option.tensor_parallel_degree"] == reason
    assert (engine.cache.block_size, engine.cache.kv_cache_bytes) == (16, None)
    assert engine.scheduler.settings.max_prefill_tokens == 2048
    assert engine.scheduler.settings.max_num_batched_tokens == 2048
    assert resolved.kv_capacity_tokens is None


_T4 = dataclasses.replace(CPU, gpu_count=1, gpu_names=("Tesla T4",))


@pytest.mark.parametrize("checkpoint", ["bfloat16", "float16", "float32"])
def test_a_gpu_without_bf16_computes_in_fp16(tmp_path: Path, checkpoint: str) -> None:
    resolved = resolve(config(), make_model(tmp_path, torch_dtype=checkpoint), _T4)
    assert resolved.config.model.dtype == "fp16"
    reason = "the checkpoint's dtype" if checkpoint == "float16" else "T4 does not support bf16 arithmetic"
    assert resolved.origins["option.dtype"] == f"computed: {reason}"


@pytest.mark.parametrize("option", ["fp16", "fp32"])
def test_a_gpu_without_bf16_computes_in_another_requested_dtype(model: Path, option: str) -> None:
    assert resolve(config(dtype=option), model, _T4).config.model.dtype == option


def test_bf16_is_refused_on_a_gpu_without_it(model: Path) -> None:
    message = "option.dtype: T4 does not support bf16 arithmetic (got bf16); allowed: auto, fp16, fp32"
    with pytest.raises(CannotServe, match=re.escape(message)):
        resolve(config(dtype="bf16"), model, _T4)


@pytest.mark.parametrize("name", ["NVIDIA A10G", "NVIDIA GeForce RTX 4090", ""])
def test_other_and_unknown_gpus_compute_in_bf16(model: Path, name: str) -> None:
    machine = dataclasses.replace(_T4, gpu_names=(name,))
    for option in ("auto", "bf16"):
        assert resolve(config(dtype=option), model, machine).config.model.dtype == "bf16"


def test_set_options_are_not_changed(model: Path) -> None:
    options = {
        "dtype": "fp16",
        "model_impl": "lmi",
        "tensor_parallel_degree": 2,
        "data_parallel_size": 2,
        "max_rolling_batch_size": 5,
        "max_rolling_batch_prefill_tokens": 99,
        "max_num_batched_tokens": 120,
        "max_queued_tokens": 5000,
        "scheduling_policy": "fair",
        "enable_chunked_prefill": False,
        "waiting_served_ratio": 0.5,
        "max_waiting_tokens": 7,
        "waiting_steps": 2,
        "step_trace": str(model / "steps.jsonl"),
        "enable_prefix_caching": False,
        "paged_attention": False,
        "block_size": 16,
        "enforce_eager": True,
        "max_model_len": 1000,
        "gpu_memory_utilization": 0.5,
        "kv_cache_gb": 0.5,
        "job_queue_size": 3,
        "batch_scheduler_policy": "static_batch",
    }
    resolved = resolve(config(**options), model, GPUS)
    engine = resolved.config
    assert (engine.model.dtype, engine.model.max_model_len, engine.parallel.tp_size) == ("fp16", 1000, 2)
    assert engine.parallel.enforce_eager
    assert dataclasses.astuple(engine.cache) == (16, False, GIB // 2, 0.5, False, "auto")
    settings = (5, 99, 120, 3, 5000, "fair", False, 0.5, 7, 2)
    assert dataclasses.astuple(engine.scheduler) == (
        settings,
        "static_batch",
        str(model / "steps.jsonl"),
    )
    assert resolved.origins == {}


@pytest.mark.parametrize("budget", ["max_rolling_batch_prefill_tokens", "max_num_batched_tokens"])
def test_an_unset_token_budget_equals_the_other_one(model: Path, budget: str) -> None:
    resolved = resolve(config(**{budget: 777}), model, CPU)
    settings = resolved.config.scheduler.settings
    assert (settings.max_prefill_tokens, settings.max_num_batched_tokens) == (777, 777)
    (other,) = {"max_rolling_batch_prefill_tokens", "max_num_batched_tokens"} - {budget}
    assert resolved.origins[f"option.{other}"] == f"computed: as option.{budget}"


def test_a_contiguous_cache_disables_preemption_and_prefix_caching(model: Path) -> None:
    engine = resolve(config(paged_attention=False), model, CPU).config
    assert engine.scheduler.batch_scheduler_policy == "guaranteed_no_evict"
    assert not engine.cache.prefix_caching


@pytest.mark.parametrize(
    ("checkpoint", "dtype"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "bf16")]
)
def test_auto_dtype_on_gpus_follows_the_checkpoint(tmp_path: Path, checkpoint: str, dtype: str) -> None:
    folder = make_model(tmp_path, torch_dtype=checkpoint)
    assert resolve(config(), folder, GPUS).config.model.dtype == dtype


@pytest.mark.parametrize("engine", ["MPI", "Python"])
@pytest.mark.parametrize(("most", "dtype"), [(torch.float16, "fp16"), (torch.bfloat16, "bf16")])
def test_without_a_dtype_in_config_json_most_of_the_weights_decide(
    tmp_path: Path, engine: str, most: torch.dtype, dtype: str
) -> None:
    folder = make_model(tmp_path, torch_dtype=None)
    tensors = {"a.weight": torch.ones(8, 8, dtype=most), "b.weight": torch.ones(2, 2)}
    save_file(tensors, folder / "model.safetensors")
    resolved = resolve(config(engine), folder, GPUS)
    assert resolved.values["option.dtype"] == dtype
    assert resolved.origins["option.dtype"] == "computed: the checkpoint's dtype"


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        # Vicuna 16k.
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        # Qwen2.5 with YaRN.
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}, 16384),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 8192),
        ({"architectures": ["CohereForCausalLM"], "model_type": "cohere", "model_max_length": 16384}, 16384),
    ],
)
def test_rotary_scaling_extends_the_default_length(
    tmp_path: Path, changes: dict[str, Any], length: int
) -> None:
    folder = make_model(tmp_path, **changes)
    assert resolve(config(), folder, CPU).config.model.max_model_len == length
    small = resolve(config(kv_cache_gb=0.05), folder, CPU)
    assert small.config.model.max_model_len == small.kv_capacity_tokens


TWO_CORES = dataclasses.replace(CPU, cpu_count=2)
NATIVE = dataclasses.replace(CPU, cpu_kernels="avx512")


@pytest.mark.parametrize(
    ("options", "machine", "note"),
    [
        (
            {"max_num_batched_tokens": 8},
            CPU,
            "max_num_batched_tokens is 8, less than .*=32: at most 8 sequences run at once",
        ),
        (
            {"max_num_batched_tokens": 8, "enable_chunked_prefill": False},
            CPU,
            "max_num_batched_tokens is 8, less than .*=32: in a full batch, only some sequences get a token",
        ),
        ({"dtype": "bf16"}, CPU, "the CPU computes in fp32"),
        ({"tensor_parallel_degree": 3}, TWO_CORES, "3 ranks on 2 cores"),
        ({"trust_remote_code": True}, CPU, "remote code is not used"),
        (
            {"batch_invariant": True},
            NATIVE,
            "true has no effect: native CPU kernels are always batch-invariant",
        ),
        ({"batch_invariant": True}, CPU, "true has no effect: .*, which are not built"),
    ],
)
def test_surprising_values_have_a_note(
    model: Path, options: dict[str, Any], machine: Machine, note: str
) -> None:
    assert re.search(note, "\n".join(resolve(config(**options), model, machine).notes))


@pytest.mark.parametrize(
    ("degree", "machine", "threads_per_rank"), [(1, CPU, 8), (2, CPU, 4), (3, CPU, 2), (3, TWO_CORES, 1)]
)
def test_ranks_share_the_cores(model: Path, degree: int, machine: Machine, threads_per_rank: int) -> None:
    parallel = resolve(config(tensor_parallel_degree=degree), model, machine).config.parallel
    assert (parallel.tp_size, parallel.threads_per_rank) == (degree, threads_per_rank)


def test_the_kv_cache_takes_a_quarter_of_a_small_memory(model: Path) -> None:
    small = dataclasses.replace(CPU, memory_available_bytes=2 * GIB)
    resolved = resolve(config(), model, small)
    assert resolved.config.cache.kv_cache_bytes == GIB // 2
    assert resolved.kv_capacity_tokens == GIB // 2 // (KV_BYTES_PER_TOKEN * 32) * 32
    origin = resolved.origins["option.kv_cache_gb"]
    assert origin.endswith("the smaller of 4 and a quarter of the 2.0 GiB that are free")


def test_max_model_len_is_reduced_to_the_kv_cache_with_a_note(model: Path) -> None:
    resolved = resolve(config(kv_cache_gb=KV_BYTES_PER_TOKEN * 1000 / GIB), model, CPU)
    assert resolved.config.model.max_model_len == 992, "whole blocks of 32"
    assert "reduced from the model's 8192" in resolved.notes[0]
    assert "KV cache" in resolved.origins["option.max_model_len"]


def test_weights_are_counted_in_the_dtype_that_the_engine_holds(model: Path) -> None:
    """A bf16 checkpoint takes 2 bytes per parameter with native kernels and 4 without."""
    small_machine = dataclasses.replace(CPU, memory_available_bytes=400 << 20)
    remedy = "use a smaller model or more memory"
    with pytest.raises(CannotServe, match=rf"take 0\.5 GiB in memory, but only 0\.4 GiB are free; {remedy}$"):
        resolve(config(kv_cache_gb=0.1), model, small_machine)
    smaller = dataclasses.replace(small_machine, memory_available_bytes=200 << 20, cpu_kernels="avx512")
    with pytest.raises(CannotServe, match=rf"{remedy}, or set option.quantize=int8$"):
        resolve(config(kv_cache_gb=0.1), model, smaller)
    resolve(config(kv_cache_gb=0.1), model, dataclasses.replace(small_machine, cpu_kernels="avx512"))


def test_the_weights_of_all_ranks_must_fit(model: Path) -> None:
    small_machine = dataclasses.replace(CPU, memory_available_bytes=400 << 20)
    with pytest.raises(CannotServe, match=r"but only 0\.4 GiB are free"):
        resolve(config(kv_cache_gb=0.1, tensor_parallel_degree=3), model, small_machine)


@pytest.mark.parametrize(
    ("options", "machine", "reason"),
    [
        (
            {"engine": "Python", "tensor_parallel_degree": 2},
            CPU,
            "2 GPUs under engine=Python; this machine has none",
        ),
        ({"tensor_parallel_degree": 10}, CPU, "9 attention heads"),
        (
            {"tensor_parallel_degree": 17},
            CPU,
            "17 GPUs; this machine has none, and its 8 core.s. can run at most 16 .*; in Docker, add --gpus all$",
        ),
        (
            {"tensor_parallel_degree": 17},
            dataclasses.replace(CPU, name="ml.c5.2xlarge"),
            "17 GPUs; ml.c5.2xlarge has none, and its 8 core.s. can .* which busy-wait for each other$",
        ),
        ({"tensor_parallel_degree": 8}, GPUS, "needs 8 GPUs; this machine has 4"),
        ({"max_model_len": 8193}, CPU, "exceeds the model's context length of 8192"),
        ({"max_model_len": 1000, "kv_cache_gb": 0.01}, CPU, "exceeds the .* tokens that the KV cache holds"),
        ({"kv_cache_gb": 0.0001}, CPU, "smaller than one block of 16 tokens"),
        ({"kv_cache_gb": 33.0}, CPU, "exceeds the free memory"),
        ({"batch_invariant": True}, GPUS, "supported only on CPUs"),
        (
            {},
            dataclasses.replace(GPUS, cpu_kernels_problem="LMI_CPU_KERNELS: wrong"),
            "^LMI_CPU_KERNELS: wrong$",
        ),
        (
            {"engine": "Python"},
            dataclasses.replace(CPU, cpu_kernels_problem="LMI_CPU_KERNELS: wrong"),
            "^LMI_CPU_KERNELS: wrong$",
        ),
        ({"step_trace": "/etc/hosts"}, CPU, r"a name ending in \.jsonl, in an existing folder"),
        ({"step_trace": "nowhere/steps.jsonl"}, CPU, r"a name ending in \.jsonl, in an existing folder"),
        ({"step_trace": "steps.json"}, CPU, r"a name ending in \.jsonl, in an existing folder"),
    ],
)
def test_refusals_give_the_reason(
    model: Path, options: dict[str, Any], machine: Machine, reason: str
) -> None:
    with pytest.raises(CannotServe, match=reason):
        resolve(config(**options), model, machine)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotServe, match=r"config\.json"):
        resolve(config(), tmp_path, CPU)


@st.composite
def configs_and_machines(draw: st.DrawFn) -> tuple[LmiConfig, Machine]:
    gpus = draw(st.integers(0, 8))
    machine = Machine(draw(st.integers(1, 64)), draw(st.integers(0, 64 * GIB)), gpus, ("x",) * gpus)
    options = {
        "dtype": draw(st.sampled_from(["auto", "fp32", "fp16", "bf16"])),
        "tensor_parallel_degree": draw(st.sampled_from(["max", 1, 2, 3, 4, 9, 10])),
        "block_size": draw(st.sampled_from([1, 16, 1024])),
        "max_model_len": draw(st.none() | st.integers(2, 10_000)),
        "kv_cache_gb": draw(st.none() | st.floats(0.001, 64)),
    }
    return config(**options), machine


@given(configs_and_machines())
def test_computed_values_are_consistent(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[LmiConfig, Machine]
) -> None:
    requested, machine = case
    folder = make_model(tmp_path_factory.mktemp("model"))
    try:
        resolved: Resolved = resolve(requested, folder, machine)
    except CannotServe:
        return
    engine = resolved.config
    assert 1 <= engine.parallel.tp_size <= min(9, machine.gpu_count or 9)
    assert engine.parallel.threads_per_rank >= 1
    assert engine.model.dtype in ("fp32", "fp16", "bf16")
    assert 1 <= engine.model.max_model_len <= 8192
    if engine.parallel.device == "cpu":
        assert engine.cache.kv_cache_bytes is not None
        assert engine.cache.kv_cache_bytes <= machine.memory_available_bytes
    if resolved.kv_capacity_tokens is not None:
        assert engine.model.max_model_len <= resolved.kv_capacity_tokens
        assert resolved.kv_capacity_tokens % engine.cache.block_size == 0


@pytest.mark.parametrize("options", [{"quantize": "int8"}, {"kv_cache_dtype": "bf16"}], ids=str)
def test_quantized_weights_and_cache_need_native_kernels(model: Path, options: dict[str, str]) -> None:
    ((name, value),) = options.items()
    resolved = resolve(config(**options), model, dataclasses.replace(CPU, cpu_kernels="avx2"))
    engine = resolved.config
    assert isinstance(engine, MpiEngineConfig)
    assert value in (engine.model.quantize, engine.cache.dtype)
    capacity = 4 * GIB // (KV_BYTES_PER_TOKEN // (2 if name == "kv_cache_dtype" else 1)) // 16 * 16
    assert resolved.kv_capacity_tokens == capacity
    with pytest.raises(CannotServe, match=rf"option.{name}={value}: needs the native CPU kernels.*compiler"):
        resolve(config(**options), model, CPU)
    with pytest.raises(CannotServe, match=rf"option.{name}={value}: supported only on CPUs"):
        resolve(config(**options), model, GPUS)


def test_a_sliding_window_allows_longer_sequences(tmp_path: Path) -> None:
    """Requires a window in all layers, paged attention and chunked prefill."""
    changes = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 512}
    model = make_model(tmp_path, **changes)
    small_cache = {"kv_cache_gb": KV_BYTES_PER_TOKEN * 1000 / GIB, "max_num_batched_tokens": 256}
    assert resolve(config(**small_cache), model, CPU).config.model.max_model_len == 8192
    assert resolve(config(**small_cache, max_model_len=5000), model, CPU).config.model.max_model_len == 5000
    for other in ({"paged_attention": False}, {"enable_chunked_prefill": False}):
        assert resolve(config(**small_cache, **other), model, CPU).config.model.max_model_len == 992
    make_model(tmp_path, **changes | {"sliding_window": 900})
    assert resolve(config(**small_cache), model, CPU).config.model.max_model_len == 992


@pytest.mark.parametrize(("head_dim", "served"), [(75, False), (76, True), (256, True), (258, False)])
def test_head_dims_that_attention_on_a_gpu_does_not_support(
    tmp_path: Path, head_dim: int, served: bool
) -> None:
    shape = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 100, "n_positions": 64}
    model = make_model(tmp_path, shape | {"n_embd": 4 * head_dim, "n_head": 4, "n_layer": 2})
    resolve(config(), model, CPU)
    if served:
        resolve(config(), model, GPUS)
        return
    refusal = rf"head_dim is {head_dim}; attention on a GPU supports even numbers up to 256"
    with pytest.raises(CannotServe, match=refusal):
        resolve(config(), model, GPUS)
