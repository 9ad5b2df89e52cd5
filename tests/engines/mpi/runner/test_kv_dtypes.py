"""The dtype of the KV cache takes effect in the loaded model: in its memory, and in the rounding of its logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines.config import CacheConfig, ModelSettings
from engines.models.architectures import read_config
from lmi_kernels.cpu import shared_team
from tests.support.plans import load, plans_in_chunks, run_plans
from tests.support.seeds import fresh_generator, integers
from tests.support.tiny_models import VOCAB_SIZE, save_llama

_BLOCK_SIZE, _NUM_BLOCKS = 4, 64
_TABLES = [[9, 2, 31, 4, 17, 0, 22], [63, 7, 50, 8, 33]]
_CHUNKS = [[11, 4, 3], [2, 8]]


def test_each_dtype_takes_the_predicted_memory_and_rounds_as_it_should(tmp_path: Path) -> None:
    if shared_team() is None:
        pytest.skip("native kernels are not built")
    save_llama(tmp_path)
    generator = fresh_generator()
    prompts = [integers(generator, 0, VOCAB_SIZE, count) for count in (25, 18)]
    exact = _logits(tmp_path, "fp32", prompts)
    errors = {
        dtype: (_logits(tmp_path, dtype, prompts) - exact).abs().max().item()
        for dtype in ("fp16", "bf16", "int8")
    }
    assert 0 < errors["fp16"] < errors["bf16"] < 0.1
    assert errors["fp16"] < errors["int8"] < 0.5
    assert errors["int8"] != errors["bf16"]


def _logits(folder: Path, dtype: str, prompts: list[list[int]]) -> torch.Tensor:
    num_bytes = _NUM_BLOCKS * _BLOCK_SIZE * read_config(folder).kv_bytes_per_token(dtype, 1)
    model = ModelSettings(str(folder), "tiny", "fp32", 64)
    runner = load(model, CacheConfig(_BLOCK_SIZE, True, num_bytes, dtype=dtype), 64)
    assert runner.cache.num_blocks == _NUM_BLOCKS
    assert runner.cache.num_bytes == num_bytes
    return torch.stack(list(run_plans(runner, plans_in_chunks(prompts, _TABLES, _CHUNKS)).values()))
