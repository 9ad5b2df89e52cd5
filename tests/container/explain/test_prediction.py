"""Predictions of memory and start-up time from config.json alone."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from container.explain.check import check
from container.explain.prediction.memory import gigabytes
from container.explain.prediction.startup import StartPrediction
from container.explain.report import CheckReport
from container.explain.target import instance_target, this_machine
from container.machine import Machine
from engines.models.gguf_index import GgufIndex
from tests.container.explain.questions import (
    CPU_MACHINE,
    FALCON_40B,
    GIB,
    LLAMA_3_8B,
    MISTRAL_7B,
    MIXTRAL,
    check_model,
    make_model,
    predict,
)

LLAMA_13B = LLAMA_3_8B | {
    "vocab_size": 32000,
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "max_position_embeddings": 4096,
}
STABLE_LM = LLAMA_3_8B | {"architectures": ["StableLmForCausalLM"], "model_type": "stablelm"}
LONG = MISTRAL_7B | {"max_position_embeddings": 131072}
SMALL = LLAMA_3_8B | {"num_hidden_layers": 2, "max_position_embeddings": 2048}


@pytest.mark.parametrize(
    ("option", "in_all", "per_gpu"),
    [
        ("dtype=fp16", 80, 10),
        ("dtype=fp32", 160, 20),
        ("tensor_parallel_degree=4", 80, 20),
        ("tensor_parallel_degree=8", 80, 10),
    ],
)
def test_falcon_40b_takes_80_gb_in_fp16_and_160_in_fp32(
    tmp_path: Path, option: str, in_all: float, per_gpu: float
) -> None:
    memory = predict(tmp_path, FALCON_40B, f"option.{option}\n", "A10G", 8)
    assert memory.available == 24e9
    assert memory.weights_in_all / 1e9 == pytest.approx(in_all, rel=0.05)
    assert memory.weights / 1e9 == pytest.approx(per_gpu, rel=0.05)


def test_mixtral_takes_17_gb_of_kv_for_4_requests_of_32768_tokens(tmp_path: Path) -> None:
    text = "option.max_rolling_batch_size=4\n"
    memory = predict(tmp_path, MIXTRAL, text, "A100-80GB", 8, length=32768)
    assert memory.kv_wanted / 1e9 == pytest.approx(17, rel=0.02)
    assert memory.requests_at_once == 4
    assert memory.weights_in_all / 1e9 == pytest.approx(93.4, rel=0.01), "the weights of all experts"


@pytest.mark.parametrize(
    ("config", "options", "device", "count", "shortage"),
    [
        (FALCON_40B, "tensor_parallel_degree=4", "A10G", 8, "holds 0 tokens.*tensor_parallel_degree=5 fits$"),
        (FALCON_40B, "tensor_parallel_degree=5", "A10G", 8, "^$"),
        (FALCON_40B, "dtype=auto", "T4", 4, "option.max_model_len"),
        (LLAMA_3_8B, "kv_cache_gb=20\noption.tensor_parallel_degree=1", "A10G", 4, "degree=2 fits$"),
        (
            STABLE_LM,
            "kv_cache_gb=20",
            "A10G",
            4,
            "; lower option.kv_cache_gb or option.max_num_batched_tokens",
        ),
        (LLAMA_3_8B, "kv_cache_gb=20", "A10G", 1, "but only 24 GB are available"),
        (LLAMA_3_8B, "kv_cache_gb=4", "A10G", 1, "^$"),
        # A cache for the windows of the longest sequence is enough, although it is shorter.
        (LONG, "dtype=auto", "A10G", 1, "^$"),
        (LONG | {"sliding_window": None}, "dtype=auto", "A10G", 1, "option.max_model_len is 131,072"),
    ],
)
def test_a_shortage_says_what_helps(
    tmp_path: Path, config: dict[str, Any], options: str, device: str, count: int, shortage: str
) -> None:
    assert re.search(shortage, predict(tmp_path, config, f"option.{options}\n", device, count).shortage)


@pytest.mark.parametrize(
    ("copies", "fewer"),
    [
        ("", ""),
        ("option.data_parallel_size=2", ""),
        ("option.data_parallel_size=4", "option.data_parallel_size=2"),
        ("minWorkers=4", "minWorkers=2"),
        (
            "option.data_parallel_size=4\nminWorkers=3",
            "option.data_parallel_size=2 and minWorkers=2",
        ),
    ],
)
def test_a_recommended_degree_names_the_copies_that_fit_with_it(
    tmp_path: Path, copies: str, fewer: str
) -> None:
    def check(degree: int, copies: str) -> CheckReport:
        text = f"option.load_format=dummy\noption.tensor_parallel_degree={degree}\n{copies}\n"
        return check_model(tmp_path, LLAMA_13B, text, instance_target("ml.g5.12xlarge"))

    memory = check(1, copies).memory
    assert memory is not None
    remedy = "option.tensor_parallel_degree=2 fits" + (f" with {fewer}" if fewer else "")
    assert memory.shortage.endswith(f"; {remedy}")
    assert check(2, fewer.replace(" and ", "\n") or copies).reasons == ()


def test_concurrent_requests_are_limited_by_the_cache_the_batch_size_or_the_tokens_of_a_step(
    tmp_path: Path,
) -> None:
    few = predict(tmp_path, LLAMA_3_8B, "", "A10G", 1, length=1000)
    assert few.requests_at_once == min(32, few.kv_tokens // 1008), "whole blocks of 16 tokens"
    many = predict(tmp_path, LLAMA_3_8B, "", "H100", 1, length=1000)
    assert many.requests_at_once == 32
    assert many.limited_by.startswith("option.max_rolling_batch_size; the KV cache has room for ")
    budget = predict(tmp_path, LLAMA_3_8B, "option.max_num_batched_tokens=8\n", "H100", 1, length=1000)
    assert budget.requests_at_once == 8
    assert budget.limited_by.startswith("option.max_num_batched_tokens; the KV cache has room for ")
    long = predict(tmp_path, LLAMA_3_8B, "", "A10G", 1, length=8192)
    assert (long.limited_by, long.requests_at_once) == ("the KV cache", long.kv_tokens // 8192)
    none = predict(tmp_path, FALCON_40B, "option.tensor_parallel_degree=4\n", "A10G", 8)
    assert (none.kv_tokens, none.requests_at_once) == (0, 0)


def test_the_request_length_is_capped_at_max_model_len(tmp_path: Path) -> None:
    memory = predict(tmp_path, LLAMA_3_8B, "option.max_model_len=2048\n", "H100", 1, length=100_000)
    assert memory.length == 2048


def test_a_sliding_window_limits_the_kv_cache_of_a_request(tmp_path: Path) -> None:
    plain = predict(tmp_path, MISTRAL_7B | {"sliding_window": None}, "", "H100", 1)
    windowed = predict(tmp_path, MISTRAL_7B, "", "H100", 1)
    assert windowed.kv_wanted == pytest.approx(plain.kv_wanted * (4096 + 2048) / 32768, rel=0.01)
    contiguous = predict(tmp_path, MISTRAL_7B, "option.paged_attention=false\n", "H100", 1)
    assert contiguous.kv_wanted == plain.kv_wanted
    assert predict(tmp_path, LONG, "", "A10G", 1).kv_tokens < 131072


def test_the_kv_cache_gets_the_rest_of_gpu_memory_utilization(tmp_path: Path) -> None:
    memory = predict(tmp_path, LLAMA_3_8B, "", "L4", 1)
    used = memory.weights + memory.activations + memory.kv_cache + (1 << 29)
    block = 16 * memory.kv_bytes_per_token
    assert 0.9 * memory.available - block < used <= 0.9 * memory.available


def test_ranks_beyond_the_number_of_kv_heads_store_copies(tmp_path: Path) -> None:
    config = LLAMA_3_8B | {"num_key_value_heads": 2}
    four = predict(tmp_path, config, "option.tensor_parallel_degree=4\n", "A10G", 4)
    two = predict(tmp_path, config, "option.tensor_parallel_degree=2\n", "A10G", 4)
    assert four.kv_bytes_per_token == 2 * two.kv_bytes_per_token


def test_ranks_on_a_cpu_share_its_memory(tmp_path: Path) -> None:
    report = check_model(tmp_path, SMALL, "option.load_format=dummy\noption.tensor_parallel_degree=2\n")
    assert report.memory is not None
    assert report.memory.available == 16 * GIB
    assert report.memory.weights == pytest.approx(report.memory.weights_in_all / 2, rel=0.01)
    assert not report.memory.shortage


def test_copies_on_a_cpu_share_its_memory(tmp_path: Path) -> None:
    text = "option.load_format=dummy\noption.kv_cache_gb=6\n"
    alone = check_model(tmp_path, SMALL, text).memory
    assert alone is not None
    assert not alone.shortage
    copies = check_model(tmp_path, SMALL, f"{text}minWorkers=2\n")
    assert copies.memory is not None
    assert copies.memory.available == 8 * GIB
    assert "but only 8.59 GB are available" in copies.memory.shortage
    assert any(warning.startswith("the model does not fit: ") for warning in copies.warnings)


def test_a_shortage_on_this_machine_is_only_a_warning(tmp_path: Path) -> None:
    text = "option.load_format=dummy\noption.max_num_batched_tokens=100000\noption.kv_cache_gb=2\n"
    report = check_model(tmp_path, SMALL, text)
    assert any(warning.startswith("the model does not fit: ") for warning in report.warnings)
    assert not any("fit" in reason for reason in report.reasons)


_HEAD_COPY = 128256 * (4096 + 20)
"""Bytes of the int8 copy of the head that native kernels keep."""


@pytest.mark.parametrize(
    ("stored", "claimed", "text", "element"),
    [
        (["BF16"], None, "", 2),
        (["F32"], "bfloat16", "", 4),
        (["F32", "BF16"], "bfloat16", "", 3),
        (["F32"], "float32", "option.dtype=bf16\n", 2),
        (["F32"], "bfloat16", "option.load_format=dummy\n", 2),
        ([], "bfloat16", "", 2),
    ],
)
def test_weights_on_a_cpu_keep_the_dtypes_of_the_files(
    stored: list[str], claimed: str | None, text: str, element: int, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.safetensors").write_bytes(_safetensors(stored))
    memory = predict(tmp_path, SMALL | {"dtype": claimed}, text, "CPU", 1)
    numbers = 2 * 128256 * 4096 + 2 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336)
    assert memory.weights == memory.weights_in_all == element * numbers + _HEAD_COPY


def _safetensors(dtypes: list[str]) -> bytes:
    """Return a file with an empty vector and a matrix of each dtype."""
    header, stop = {"vector": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}}, 0
    for dtype in dtypes:
        size = 64 * (4 if dtype == "F32" else 2)
        header[dtype] = {"dtype": dtype, "shape": [8, 8], "data_offsets": [stop, stop := stop + size]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(stop)


def test_int8_weights_and_cache_take_less(tmp_path: Path) -> None:
    plain, weights, cache = (
        predict(tmp_path, SMALL, f"option.load_format=dummy\n{text}", "CPU", 1)
        for text in ("", "option.quantize=int8\n", "option.kv_cache_dtype=int8\n")
    )
    embedding, rows = 128256 * 4096, 128256 + 2 * (4096 + 2 * 1024 + 2 * 4096 + 2 * 14336)
    # The embedding stays in bf16, and each row of a linear layer has a scale, a sum and a bias.
    assert weights.weights == (plain.weights - _HEAD_COPY + 2 * embedding) // 2 + 12 * rows
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
    memory = predict(tmp_path, FALCON_40B, text, "A10G", 8)
    assert memory.weights / 1e9 == pytest.approx(10, rel=0.05)
    assert (memory.requests_at_once, memory.limited_by) == (4, "batch_size")
    assert memory.kv_wanted == 4 * 2048 * 122_880
    short = predict(tmp_path, FALCON_40B, text, "A10G", 8, length=100)
    assert short == dataclasses.replace(memory, length=100, kv_wanted=4 * 100 * 122_880)


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
    model = make_model(tmp_path / "model", SMALL)
    sizes = {"a-00001-of-00002.gguf": 3000, "a-00002-of-00002.gguf": 2000}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    GgufIndex(str(tmp_path), sizes, "llama", 32, "float32", {}, 0.0, {}).save(model)
    (tmp_path / "serving.properties").write_text("option.model_id=owner/name\n")
    start = check(tmp_path, {}, this_machine(CPU_MACHINE), lambda source: model).start
    assert start is not None
    assert start.file_bytes == 5000


def test_file_bytes_do_not_include_another_copy_of_the_weights(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", SMALL)
    for name, size in (("model.safetensors", 3000), ("consolidated.safetensors", 3500)):
        (model / name).write_bytes(bytes(size))
    (tmp_path / "serving.properties").write_text("option.model_id=owner/name\n")
    start = check(tmp_path, {}, this_machine(CPU_MACHINE), lambda source: model).start
    assert start is not None
    assert start.file_bytes == 3000


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 MB"),
        (1_234_567, "1.23 MB"),
        (999_400_000, "999 MB"),
        (999_600_000, "1 GB"),
        (1_000_000_000, "1 GB"),
        (23_456_000_000, "23.5 GB"),
        (999_700_000_000, "1000 GB"),
        (1_374_000_000_000, "1370 GB"),
        (405_800_000_000_000, "406000 GB"),
    ],
)
def test_sizes_have_three_digits_and_no_exponent(count: int, text: str) -> None:
    assert gigabytes(count) == text


def test_long_times_to_load_a_model_have_no_exponent(tmp_path: Path) -> None:
    report = check(make_model(tmp_path, SMALL), {}, this_machine(CPU_MACHINE))
    slow = dataclasses.replace(report, start=StartPrediction(1_374_000_000_000, 1374.0, 2748.0))
    assert "about 1370 s to fetch, about 2750 s to load 1370 GB" in slow.render()
