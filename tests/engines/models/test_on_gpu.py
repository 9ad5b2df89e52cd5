"""Small models on a GPU: their logits against transformers' on the CPU. Needs torch, transformers and pytest alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.plans import plans_in_chunks, run_plans
from tests.support.seeds import fresh_generator, integers
from tests.support.tiny_models import (
    SHAPES,
    VOCAB_SIZE,
    load_oracle,
    make_runner,
    oracle_logits,
    save_model,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


# Kernels take heads of 16 and more.
HEADS_OF_16: dict[str, dict[str, Any]] = {
    kind: {"hidden_size": 160} if kind.startswith("falcon") else {"head_dim": 16} for kind in SHAPES
}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-3), ("fp16", 5e-2), ("bf16", 4e-1)])
def test_logits_are_those_of_transformers(
    tmp_path: Path, kind: str, dtype: str, tolerance: float, paged: bool
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = fresh_generator()
    save_model(tmp_path, kind, **HEADS_OF_16[kind])
    prompts = [integers(generator, 0, VOCAB_SIZE, length) for length in (3, 17, 30)]
    tables = [[0, 1], [2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13, 14]]
    oracle = load_oracle(tmp_path, dtype)
    expected = [oracle_logits(oracle, prompt) for prompt in prompts]
    runner = make_runner(tmp_path, dtype=dtype, paged=paged, device="cuda")
    found = run_plans(runner, plans_in_chunks(prompts, tables, [[3], [8, 8], [1, 20]]))
    assert found
    for (prompt, position), logits in found.items():
        torch.testing.assert_close(
            logits.float().cpu(), expected[prompt][position], rtol=tolerance, atol=tolerance
        )
