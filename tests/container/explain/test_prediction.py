"""Predictions of memory and start-up time from config.json alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from container.explain.target import device_target, instance_target, this_machine
from container.machine import Machine
from engines.models.gguf_index import GgufIndex
from tests.container.explain.predictions import (
    FALCON_40B,
    LLAMA_3_8B,
    MISTRAL_7B,
    MIXTRAL,
    check_model,
    predict,
)
from tests.container.explain.questions import GIB


@pytest.mark.parametrize(("dtype", "gigabytes"), [("fp16", 80), ("fp32", 160)])
def test_falcon_40b_takes_80_gb_in_fp16_and_160_in_fp32(tmp_path: Path, dtype: str, gigabytes: float) -> None:
    memory = predict(tmp_path, FALCON_40B, f"option.dtype={dtype}\n", "A10G", 8)
    assert memory.weights_in_all / 1e9 == pytest.approx(gigabytes, rel=0.05)


@pytest.mark.parametrize(("degree", "gigabytes"), [(4, 20), (8, 10)])
def test_falcon_40b_takes_20_gb_per_gpu_at_degree_4_and_10_gb_at_degree_8(
    tmp_path: Path, degree: int, gigabytes: float
) -> None:
    memory = predict(tmp_path, FALCON_40B, f"option.tensor_parallel_degree={degree}\n", "A10G", 8)
    assert memory.available == 24e9
    assert memory.weights / 1e9 == pytest.approx(gigabytes, rel=0.05)


def test_mixtral_takes_17_gb_of_kv_for_4_requests_of_32768_tokens(tmp_path: Path) -> None:
    text = "option.max_rolling_batch_size=4\n"
    memory = predict(tmp_path, MIXTRAL, text, "A100-80GB", 8, length=32768)
    assert memory.kv_wanted / 1e9 == pytest.approx(17, rel=0.02)
    assert memory.requests_at_once == 4
    assert memory.weights_in_all / 1e9 == pytest.approx(93.4, rel=0.01), "the weights of all experts"


def test_a_shortage_names_a_degree_that_fits(tmp_path: Path) -> None:
    memory = predict(tmp_path, FALCON_40B, "option.tensor_parallel_degree=4\n", "A10G", 8)
    assert (memory.kv_tokens, memory.requests_at_once) == (0, 0)
    assert "the KV cache holds 0 tokens" in memory.shortage
    assert memory.shortage.endswith("option.tensor_parallel_degree=5 fits")
    assert not predict(tmp_path, FALCON_40B, "option.tensor_parallel_degree=5\n", "A10G", 8).shortage


def test_a_shortage_names_no_degree_for_a_model_without_tensor_parallelism(tmp_path: Path) -> None:
    stable_lm = LLAMA_3_8B | {"architectures": ["StableLmForCausalLM"], "model_type": "stablelm"}
    memory = predict(tmp_path, stable_lm, "option.kv_cache_gb=20\n", "A10G", 4)
    assert "lower option.max_model_len" in memory.shortage
    assert (
        "option.tensor_parallel_degree=2 fits"
        in predict(
            tmp_path, LLAMA_3_8B, "option.kv_cache_gb=20\noption.tensor_parallel_degree=1\n", "A10G", 4
        ).shortage
    )


def test_a_shortage_at_every_degree_names_options(tmp_path: Path) -> None:
    memory = predict(tmp_path, FALCON_40B, "", "T4", 4)
    assert "option.max_model_len" in memory.shortage


def test_concurrent_requests_are_limited_by_the_cache_or_the_batch_size(tmp_path: Path) -> None:
    few = predict(tmp_path, LLAMA_3_8B, "", "A10G", 1, length=1000)
    assert few.requests_at_once == min(32, few.kv_tokens // 1008), "whole blocks of 16 tokens"
    many = predict(tmp_path, LLAMA_3_8B, "", "H100", 1, length=1000)
    assert many.requests_at_once == 32
    assert many.limited_by.startswith("option.max_rolling_batch_size; the KV cache has room for ")
    long = predict(tmp_path, LLAMA_3_8B, "", "A10G", 1, length=8192)
    assert (long.limited_by, long.requests_at_once) == ("the KV cache", long.kv_tokens // 8192)


def test_the_request_length_is_capped_at_max_model_len(tmp_path: Path) -> None:
    memory = predict(tmp_path, LLAMA_3_8B, "option.max_model_len=2048\n", "H100", 1, length=100_000)
    assert memory.length == 2048


def test_a_sliding_window_limits_the_kv_cache_of_a_request(tmp_path: Path) -> None:
    plain = predict(tmp_path, MISTRAL_7B | {"sliding_window": None}, "", "H100", 1)
    windowed = predict(tmp_path, MISTRAL_7B, "", "H100", 1)
    assert windowed.kv_wanted == pytest.approx(plain.kv_wanted * (4096 + 2048) / 32768, rel=0.01)
    contiguous = predict(tmp_path, MISTRAL_7B, "option.paged_attention=false\n", "H100", 1)
    assert contiguous.kv_wanted == plain.kv_wanted


def test_a_cache_for_the_windows_of_the_longest_sequence_is_enough(tmp_path: Path) -> None:
    long = MISTRAL_7B | {"max_position_embeddings": 131072}
    windowed = predict(tmp_path, long, "", "A10G", 1)
    assert windowed.kv_tokens < 131072
    assert not windowed.shortage
    assert (
        "option.max_model_len is 131,072"
        in predict(tmp_path, long | {"sliding_window": None}, "", "A10G", 1).shortage
    )


def test_the_kv_cache_gets_the_rest_of_gpu_memory_utilization(tmp_path: Path) -> None:
    memory = predict(tmp_path, LLAMA_3_8B, "", "L4", 1)
    used = memory.weights + memory.activations + memory.kv_cache + (1 << 29)
    block = 16 * memory.kv_bytes_per_token
    assert 0.9 * memory.available - block < used <= 0.9 * memory.available


def test_a_kv_cache_of_a_set_size_must_fit_on_the_gpu(tmp_path: Path) -> None:
    memory = predict(tmp_path, LLAMA_3_8B, "option.kv_cache_gb=20\n", "A10G", 1)
    assert "but only 24 GB are available" in memory.shortage
    assert not predict(tmp_path, LLAMA_3_8B, "option.kv_cache_gb=4\n", "A10G", 1).shortage


def test_ranks_beyond_the_number_of_kv_heads_store_copies(tmp_path: Path) -> None:
    config = LLAMA_3_8B | {"num_key_value_heads": 2}
    four = predict(tmp_path, config, "option.tensor_parallel_degree=4\n", "A10G", 4)
    two = predict(tmp_path, config, "option.tensor_parallel_degree=2\n", "A10G", 4)
    assert four.kv_bytes_per_token == 2 * two.kv_bytes_per_token


def test_ranks_on_a_cpu_share_its_memory(tmp_path: Path) -> None:
    config = LLAMA_3_8B | {"num_hidden_layers": 2, "max_position_embeddings": 2048}
    report = check_model(tmp_path, config, "option.load_format=dummy\noption.tensor_parallel_degree=2\n")
    assert report.memory is not None
    assert report.memory.available == 16 * GIB
    assert report.memory.weights == pytest.approx(report.memory.weights_in_all / 2, rel=0.01)
    assert not report.memory.shortage


def test_copies_on_a_cpu_share_its_memory(tmp_path: Path) -> None:
    config = LLAMA_3_8B | {"num_hidden_layers": 2, "max_position_embeddings": 2048}
    text = "option.load_format=dummy\noption.kv_cache_gb=6\n"
    alone = check_model(tmp_path, config, text).memory
    assert alone is not None
    assert not alone.shortage
    copies = check_model(tmp_path, config, f"{text}minWorkers=2\n")
    assert copies.memory is not None
    assert copies.memory.available == 8 * GIB
    assert "but only 8.59 GB are available" in copies.memory.shortage
    assert any(warning.startswith("the model does not fit: ") for warning in copies.warnings)


def test_a_shortage_on_this_machine_is_only_a_warning(tmp_path: Path) -> None:
    config = LLAMA_3_8B | {"num_hidden_layers": 1, "max_position_embeddings": 256}
    text = "option.load_format=dummy\noption.max_num_batched_tokens=100000\noption.kv_cache_gb=2\n"
    report = check_model(tmp_path, config, text)
    assert any(warning.startswith("the model does not fit: ") for warning in report.warnings)
    assert not any("fit" in reason for reason in report.reasons)


def test_int8_weights_and_cache_take_less(tmp_path: Path) -> None:
    config = LLAMA_3_8B | {"num_hidden_layers": 2, "max_position_embeddings": 512}
    target = device_target("CPU", 1)
    predictions = [
        check_model(tmp_path, config, f"option.load_format=dummy\n{text}", target).memory
        for text in ("", "option.quantize=int8\n", "option.kv_cache_dtype=int8\n")
    ]
    plain, weights, cache = (one for one in predictions if one is not None)
    assert weights.weights == plain.weights // 2
    assert cache.kv_bytes_per_token == pytest.approx(plain.kv_bytes_per_token / 4, rel=0.05)


@pytest.mark.parametrize(
    ("config", "text", "token_bytes"),
    [(FALCON_40B, "", 122_880), (MIXTRAL, "", 131_072), (LLAMA_3_8B, "option.dtype=fp32\n", 262_144)],
)
def test_kv_bytes_per_token_on_a_gpu(
    tmp_path: Path, config: dict[str, Any], text: str, token_bytes: int
) -> None:
    assert predict(tmp_path, config, text, "A100-80GB", 8).kv_bytes_per_token == token_bytes


def test_dynamic_batching_distributes_layers_and_needs_kv_for_a_whole_batch(tmp_path: Path) -> None:
    text = "engine=Python\nbatch_size=4\noption.tensor_parallel_degree=8\noption.dtype=fp16\n"
    (tmp_path / "model").mkdir()
    report = check_model(tmp_path, FALCON_40B, text, instance_target("ml.g5.48xlarge"))
    memory = report.memory
    assert memory is not None
    assert memory.weights / 1e9 == pytest.approx(10, rel=0.05)
    assert (memory.requests_at_once, memory.limited_by) == (4, "batch_size")
    assert memory.kv_wanted == 4 * 2048 * 122_880


def test_the_gpus_of_this_machine_are_looked_up_by_name() -> None:
    def detect(name: str) -> str:
        target = this_machine(Machine(4, 16 * GIB, gpu_count=1, gpu_names=(name,)))
        return target.device.name if target.device else ""

    assert detect("NVIDIA A10G") == "A10G"
    assert detect("NVIDIA A100-SXM4-80GB") == "A100-80GB"
    assert detect("NVIDIA L40S") == "L40S"
    assert detect("Tesla T4") == "T4"
    assert detect("NVIDIA GeForce RTX 4090") == ""
    assert [detect(f"NVIDIA {name}") for name in ("L40", "T400 4GB", "GH200 480GB")] == ["", "", ""]


def test_download_time_depends_on_network_and_disk(tmp_path: Path) -> None:
    slow = check_model(tmp_path, LLAMA_3_8B, "", instance_target("ml.g5.xlarge")).start
    fast = check_model(tmp_path, LLAMA_3_8B, "", instance_target("ml.g5.48xlarge")).start
    assert slow is not None
    assert fast is not None
    assert slow.file_bytes == pytest.approx(16.06e9, rel=0.01)
    assert slow.download_seconds == pytest.approx(slow.file_bytes / 312.5e6)
    assert fast.download_seconds == fast.load_seconds == fast.file_bytes / 1e9


def test_file_bytes_of_a_gguf_model_are_those_of_its_gguf_files(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    sizes = {"a-00001-of-00002.gguf": 3000, "a-00002-of-00002.gguf": 2000}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    GgufIndex(str(tmp_path), sizes, "llama", 32, "float32", {}, 0.0, {}).save(model)
    start = check_model(tmp_path, LLAMA_3_8B | {"num_hidden_layers": 2}).start
    assert start is not None
    assert start.file_bytes == 5000
