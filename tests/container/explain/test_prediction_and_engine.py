"""Predicted memory, compared with the report of the engine's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from container.explain.check import check
from container.explain.target import this_machine
from container.machine import Machine, detect
from tests.support.plans import BLOCK_SIZE
from tests.support.tiny_models import VOCAB_SIZE, make_runner, save_model

GIB = 1024**3
NUM_BLOCKS = 64
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {"intermediate_size": 200},
    "qwen3_moe": {},
    "falcon-40b": {"ffn_hidden_size": 400},
}
"""Models large enough that norms, which predictions ignore, are less than 2 % of the weights."""


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_predicted_weights_and_cache_match_the_engine(tmp_path: Path, kind: str, dtype: str) -> None:
    model = tmp_path / "model"
    save_model(model, kind, dtype=dtype, **KINDS[kind])
    (model / "tokenizer.json").write_text("{}")
    (tmp_path / "serving.properties").write_text(f"option.model_id={model}\n")
    here = Machine(2, 4 * GIB, cpu_kernels=detect({}).cpu_kernels)
    report = check(tmp_path, {}, this_machine(here))
    memory = report.memory
    assert memory is not None
    assert report.warnings == ()
    runner = make_runner(model, num_blocks=NUM_BLOCKS)
    # Native kernels keep an int8 copy of the head, with five numbers for each row.
    copy = VOCAB_SIZE * (runner.config.hidden_size + 20) if here.cpu_kernels else 0
    assert memory.weights == pytest.approx(runner.report.owned_bytes + copy, rel=0.02)
    assert memory.kv_bytes_per_token == runner.kv_bytes_per_token
    tokens = NUM_BLOCKS * BLOCK_SIZE
    assert runner.cache.num_bytes == pytest.approx(tokens * memory.kv_bytes_per_token, rel=0.02)
