"""Predictions of memory and start-up from config.json alone."""

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
    found = predict(tmp_path, FALCON_40B, f"option.dtype={dtype}\n", "A10G", 8)
    assert found.weights_in_all / 1e9 == pytest.approx(gigabytes, rel=0.05)


@pytest.mark.parametrize(("degree", "gigabytes"), [(4, 20), (8, 10)])
def test_falcon_40b_takes_20_of_24_gb_at_degree_4_and_10_at_degree_8(
    tmp_path: Path, degree: int, gigabytes: float
) -> None:
    found = predict(tmp_path, FALCON_40B, f"option.tensor_parallel_degree={degree}\n", "A10G", 8)
    assert found.available == 24e9
    assert found.weights / 1e9 == pytest.approx(gigabytes, rel=0.05)


def test_mixtral_takes_17_gb_of_kv_for_4_requests_of_32768_tokens(tmp_path: Path) -> None:
    text = "option.max_rolling_batch_size=4\n"
    found = predict(tmp_path, MIXTRAL, text, "A100-80GB", 8, length=32768)
    assert found.kv_wanted / 1e9 == pytest.approx(17, rel=0.02)
    assert found.requests_at_once == 4
    assert found.weights_in_all / 1e9 == pytest.approx(93.4, rel=0.01), "of all experts"


def test_what_does_not_fit_names_the_degree_that_does(tmp_path: Path) -> None:
    found = predict(tmp_path, FALCON_40B, "option.tensor_parallel_degree=4\n", "A10G", 8)
    assert (found.kv_tokens, found.requests_at_once) == (0, 0)
    assert "the KV cache holds 0 tokens" in found.shortage
    assert found.shortage.endswith("option.tensor_parallel_degree=5 fits")
    assert not predict(tmp_path, FALCON_40B, "option.tensor_parallel_degree=5\n", "A10G", 8).shortage


def test_no_degree_is_named_for_a_model_that_runs_on_one_rank_only(tmp_path: Path) -> None:
    stable_lm = LLAMA_3_8B | {"architectures": ["StableLmForCausalLM"], "model_type": "stablelm"}
    found = predict(tmp_path, stable_lm, "option.kv_cache_gb=20\n", "A10G", 4)
    assert "lower option.max_model_len" in found.shortage
    assert (
        "option.tensor_parallel_degree=2 fits"
        in predict(
            tmp_path, LLAMA_3_8B, "option.kv_cache_gb=20\noption.tensor_parallel_degree=1\n", "A10G", 4
        ).shortage
    )


def test_what_fits_nowhere_names_the_options(tmp_path: Path) -> None:
    found = predict(tmp_path, FALCON_40B, "", "T4", 4)
    assert "option.max_model_len" in found.shortage


def test_the_requests_at_once_are_what_the_cache_holds_or_the_file_allows(tmp_path: Path) -> None:
    few = predict(tmp_path, LLAMA_3_8B, "", "A10G", 1, length=1000)
    assert few.requests_at_once == min(32, few.kv_tokens // 1008), "whole blocks of 16 tokens"
    many = predict(tmp_path, LLAMA_3_8B, "", "H100", 1, length=1000)
    assert many.requests_at_once == 32
    assert many.limited_by.startswith("option.max_rolling_batch_size; the KV cache has room for ")
    long = predict(tmp_path, LLAMA_3_8B, "", "A10G", 1, length=8192)
    assert (long.limited_by, long.requests_at_once) == ("the KV cache", long.kv_tokens // 8192)


def test_a_request_is_never_longer_than_the_longest_sequence(tmp_path: Path) -> None:
    found = predict(tmp_path, LLAMA_3_8B, "option.max_model_len=2048\n", "H100", 1, length=100_000)
    assert found.length == 2048


def test_a_sliding_window_bounds_what_a_request_holds(tmp_path: Path) -> None:
    plain = predict(tmp_path, MISTRAL_7B | {"sliding_window": None}, "", "H100", 1)
    windowed = predict(tmp_path, MISTRAL_7B, "", "H100", 1)
    assert windowed.kv_wanted == pytest.approx(plain.kv_wanted * (4096 + 2048) / 32768, rel=0.01)
    contiguous = predict(tmp_path, MISTRAL_7B, "option.paged_attention=false\n", "H100", 1)
    assert contiguous.kv_wanted == plain.kv_wanted


def test_a_cache_that_holds_the_windows_of_the_longest_sequence_is_enough(tmp_path: Path) -> None:
    long = MISTRAL_7B | {"max_position_embeddings": 131072}
    windowed = predict(tmp_path, long, "", "A10G", 1)
    assert windowed.kv_tokens < 131072
    assert not windowed.shortage
    assert (
        "option.max_model_len is 131,072"
        in predict(tmp_path, long | {"sliding_window": None}, "", "A10G", 1).shortage
    )


def test_the_kv_cache_is_what_the_rest_leaves_of_the_share(tmp_path: Path) -> None:
    found = predict(tmp_path, LLAMA_3_8B, "", "L4", 1)
    taken = found.weights + found.activations + found.kv_cache + (1 << 29)
    block = 16 * found.kv_bytes_per_token
    assert 0.9 * found.available - block < taken <= 0.9 * found.available


def test_a_given_kv_cache_is_held_against_the_gpu(tmp_path: Path) -> None:
    found = predict(tmp_path, LLAMA_3_8B, "option.kv_cache_gb=20\n", "A10G", 1)
    assert "but only 24 GB are available" in found.shortage
    assert not predict(tmp_path, LLAMA_3_8B, "option.kv_cache_gb=4\n", "A10G", 1).shortage


def test_ranks_beyond_the_kv_heads_store_copies(tmp_path: Path) -> None:
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


def test_a_shortage_here_only_warns_because_the_server_measures(tmp_path: Path) -> None:
    config = LLAMA_3_8B | {"num_hidden_layers": 1, "max_position_embeddings": 256}
    text = "option.load_format=dummy\noption.max_num_batched_tokens=100000\noption.kv_cache_gb=2\n"
    report = check_model(tmp_path, config, text)
    assert any(warning.startswith("the model does not fit: ") for warning in report.warnings)
    assert not any("fit" in reason for reason in report.reasons)


def test_int8_weights_and_cache_take_less(tmp_path: Path) -> None:
    config = LLAMA_3_8B | {"num_hidden_layers": 2, "max_position_embeddings": 512}
    target = device_target("CPU", 1)
    found = [
        check_model(tmp_path, config, f"option.load_format=dummy\n{text}", target).memory
        for text in ("", "option.quantize=int8\n", "option.kv_cache_dtype=int8\n")
    ]
    plain, weights, cache = (one for one in found if one is not None)
    assert weights.weights == plain.weights // 2
    assert cache.kv_bytes_per_token == pytest.approx(plain.kv_bytes_per_token / 4, rel=0.05)


@pytest.mark.parametrize(
    ("config", "text", "token_bytes"),
    [(FALCON_40B, "", 122_880), (MIXTRAL, "", 131_072), (LLAMA_3_8B, "option.dtype=fp32\n", 262_144)],
)
def test_the_kv_cache_of_a_token_on_a_gpu(
    tmp_path: Path, config: dict[str, Any], text: str, token_bytes: int
) -> None:
    assert predict(tmp_path, config, text, "A100-80GB", 8).kv_bytes_per_token == token_bytes


def test_dynamic_batching_spreads_layers_and_takes_a_whole_batch(tmp_path: Path) -> None:
    text = "engine=Python\nbatch_size=4\noption.tensor_parallel_degree=8\noption.dtype=fp16\n"
    (tmp_path / "model").mkdir()
    report = check_model(tmp_path, FALCON_40B, text, instance_target("ml.g5.48xlarge"))
    found = report.memory
    assert found is not None
    assert found.weights / 1e9 == pytest.approx(10, rel=0.05)
    assert (found.requests_at_once, found.limited_by) == (4, "batch_size")
    assert found.kv_wanted == 4 * 2048 * 122_880


def test_the_gpus_of_this_machine_are_looked_up_by_name() -> None:
    def found(name: str) -> str:
        target = this_machine(Machine(4, 16 * GIB, gpu_count=1, gpu_names=(name,)))
        return target.device.name if target.device else ""

    assert found("NVIDIA A10G") == "A10G"
    assert found("NVIDIA A100-SXM4-80GB") == "A100-80GB"
    assert found("NVIDIA L40S") == "L40S"
    assert found("NVIDIA GeForce RTX 4090") == ""


def test_the_download_is_as_fast_as_network_and_disk(tmp_path: Path) -> None:
    slow = check_model(tmp_path, LLAMA_3_8B, "", instance_target("ml.g5.xlarge")).start
    fast = check_model(tmp_path, LLAMA_3_8B, "", instance_target("ml.g5.48xlarge")).start
    assert slow is not None
    assert fast is not None
    assert slow.file_bytes == pytest.approx(16.06e9, rel=0.01)
    assert slow.download_seconds == pytest.approx(slow.file_bytes / 312.5e6)
    assert fast.download_seconds == fast.load_seconds == fast.file_bytes / 1e9


def test_the_files_of_a_quantised_model_are_those_that_are_loaded(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    sizes = {"a-00001-of-00002.gguf": 3000, "a-00002-of-00002.gguf": 2000}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    GgufIndex(str(tmp_path), sizes, "llama", 32, "float32", {}, 0.0, {}).save(model)
    start = check_model(tmp_path, LLAMA_3_8B | {"num_hidden_layers": 2}).start
    assert start is not None
    assert start.file_bytes == 5000
