"""Check floors and limits, and the traces that they apply to, against numbers computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.models.architectures import read_config
from engines.models.config import ModelConfig
from tests.gpu.floors import Ceilings, decode_work, mixed_work, prefill_work, trace_floor
from tests.gpu.shapes import write
from tests.gpu.traces import w3, w6
from tests.support.published_models import PUBLISHED

H200 = Ceilings(copy=4.3e12, matmul=790e12)


def config_of(name: str, folder: Path) -> ModelConfig:
    return read_config(write(PUBLISHED[name], folder))


@pytest.mark.parametrize(
    ("name", "num_seqs", "milliseconds"),
    [
        ("llama-3-8b", 1, 3.52),
        ("llama-3-8b", 32, 4.49),
        ("llama-3-8b", 256, 12.87),
        ("falcon-40b", 1, 19.2),
        ("falcon-40b", 32, 20.2),
        ("falcon-40b", 256, 34.25),
        ("mixtral-8x7b", 1, 5.96),
        ("mixtral-8x7b", 32, 22.7),
        ("mixtral-8x7b", 256, 29.7),
        ("qwen3-0.6b", 1, 0.30),
    ],
)
def test_floor_of_a_decode_step_with_1024_keys(
    name: str, num_seqs: int, milliseconds: float, tmp_path: Path
) -> None:
    floor = decode_work(config_of(name, tmp_path), num_seqs, 1024 * num_seqs).floor(H200)
    assert 1e3 * floor == pytest.approx(milliseconds, rel=0.02)


def test_kernels_at_the_ceilings_reach_the_floor(tmp_path: Path) -> None:
    """256 sequences of Llama-3-8B at 1,024 keys: attention is bound by memory, products by arithmetic."""
    work = decode_work(config_of("llama-3-8b", tmp_path), 256, 1024 * 256)
    perfect = work.attention.bytes / H200.copy + work.products.operations / H200.matmul
    assert work.floor(H200) == perfect
    assert (work.attention.bytes + work.products.bytes) / H200.copy / perfect == pytest.approx(0.89, abs=0.01)


def test_a_mixed_step_reads_the_weights_once(tmp_path: Path) -> None:
    config = config_of("llama-3-8b", tmp_path)
    decode, mixed = decode_work(config, 256, 1024 * 256), mixed_work(config, 256, 1024 * 256, 512)
    assert mixed.products.bytes == decode.products.bytes
    assert 1e3 * mixed.floor(H200) == pytest.approx(21.6, rel=0.01)


def test_floor_of_a_prefill_of_2048_tokens(tmp_path: Path) -> None:
    assert 1e3 * prefill_work(config_of("llama-3-8b", tmp_path), 2048).floor(H200) == pytest.approx(
        36.58, rel=0.01
    )


def test_size_and_throughput_limits_of_w6(tmp_path: Path) -> None:
    trace = w6()
    assert trace.num_output_tokens == 133_966
    assert trace.num_input_tokens == 142_827
    prompts = [len(prompt) for prompt in trace.prompts]
    for name, limit in (("qwen3-0.6b", 36_200), ("llama-3-8b", 13_384)):
        floor = trace_floor(config_of(name, tmp_path), prompts, trace.outputs, H200)
        assert trace.num_output_tokens / floor == pytest.approx(limit, rel=0.005)


def test_w3_resamples_output_lengths_above_the_cap() -> None:
    trace = w3(2000, 512, 97, prompt_tokens=4)
    assert max(trace.outputs) <= 512
    assert trace.outputs.count(512) < 10
    assert 100 < sum(trace.outputs) / 2000 < 128
    assert {len(prompt) for prompt in trace.prompts} == {4}


@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_reads_the_same_shapes(name: str, tmp_path: Path) -> None:
    """Our readers of config.json and transformers must use the same defaults."""
    from transformers import AutoConfig

    folder = write(PUBLISHED[name], tmp_path)
    theirs, ours = AutoConfig.from_pretrained(folder), read_config(folder)
    assert theirs.num_hidden_layers == ours.num_layers
    assert theirs.num_attention_heads == ours.num_heads
    assert theirs.vocab_size == ours.vocab_size
    assert theirs.tie_word_embeddings == ours.tie_word_embeddings
    assert json.loads((folder / "config.json").read_text()) == PUBLISHED[name]
