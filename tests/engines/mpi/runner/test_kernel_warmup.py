"""Kernel warm-up compiles every kernel variant, so no step stalls all requests for a compilation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from engines.core import SamplingParams
from engines.mpi.runner.kernel_warmup import warm_up_kernels
from engines.mpi.runner.largest_step import LargestStep
from engines.sampling.batch import SamplingRow
from lmi_kernels._triton import INTERPRETED
from lmi_kernels.tuning import DEFAULT
from tests.support.examples import examples
from tests.support.kernel_variants import Variant, recorded_variants
from tests.support.plans import PlanMaker
from tests.support.tiny_models import BLOCK_SIZE, make_runner, save_model

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")

_MAX_MODEL_LEN = 512
_LARGEST = LargestStep(num_tokens=256, num_seqs=8, max_model_len=_MAX_MODEL_LEN)
_HEADS: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
_MODELS: dict[str, dict[str, Any]] = {
    "llama": _HEADS,
    "mixtral": _HEADS,
    "falcon-7b": {"hidden_size": 256, "num_attention_heads": 4, "ffn_hidden_size": 64},
}
"""Query heads per KV head and head dimensions are such that the tiles equal those in production."""

_steps = st.lists(
    st.tuples(st.sampled_from((1, 2, 3, 4, 5, 9, 17, 40, 130)), st.integers(0, 300)), min_size=1, max_size=8
)
"""For each sequence: the number of tokens to compute, and of tokens computed before."""


@pytest.mark.parametrize("tuned_for", [DEFAULT, "sm_90"])
@pytest.mark.parametrize("kind", _MODELS)
def test_steps_after_the_warm_up_compile_no_new_variants(kind: str, tuned_for: str, tmp_path: Path) -> None:
    save_model(tmp_path, kind, **_MODELS[kind], max_position_embeddings=_MAX_MODEL_LEN)
    with recorded_variants(tuned_for) as recorded:
        runner = make_runner(
            tmp_path, num_blocks=256, max_model_len=_MAX_MODEL_LEN, max_step_tokens=_LARGEST.num_tokens
        )
        warm_up_kernels(_LARGEST, runner.steps, BLOCK_SIZE)
        compiled = set(recorded)

        @examples(40)
        @given(_steps)
        def check_step(lens: list[tuple[int, int]]) -> None:
            maker = PlanMaker()
            chunks = {}
            budget = _LARGEST.num_tokens
            for row, (count, computed) in enumerate(lens):
                if count > budget:
                    break
                budget -= count
                maker.begin(row, range(_MAX_MODEL_LEN // BLOCK_SIZE), computed)
                chunks[row] = [0] * count
            plan = maker.plan(chunks)
            runner.steps.update(plan)
            rows = [SamplingRow("a", SamplingParams(max_new_tokens=1), [0], 1) for _ in chunks]
            runner.steps.compute(runner.steps.prepare(plan), rows=rows)
            assert _describe(recorded - compiled) == []

        check_step()
    assert {"_tiles_kernel", "_packed_attention_kernel", "_choose_kernel"} <= {
        variant.kernel for variant in compiled
    }


def _describe(variants: set[Variant]) -> list[str]:
    return [f"{variant.kernel}: {variant.specialization}" for variant in variants]
