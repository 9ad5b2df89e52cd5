"""Kernel warm-up compiles every kernel variant, so no step stalls all requests for a compilation."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from engines.core import SamplingParams
from engines.models.decoder import Decoder
from engines.mpi.runner.kernel_warmup import warm_up_kernels
from engines.mpi.runner.largest_step import LargestStep
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
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


@pytest.mark.parametrize(
    ("kind", "changes", "largest", "query_lens"),
    [
        # More rows than routing loads at a time in a decode step, but few for each expert.
        ("mixtral", {"num_local_experts": 8}, LargestStep(256, 1, _MAX_MODEL_LEN), [150]),
        # Chunks of different lengths, of which the longer one needs two tiles.
        ("llama", {"num_key_value_heads": 8}, LargestStep(128, 8, _MAX_MODEL_LEN), [66, 2]),
    ],
    ids=["experts", "chunks"],
)
def test_numbers_of_tokens_between_powers_of_two_compile_no_new_variants(
    kind: str, changes: dict[str, Any], largest: LargestStep, query_lens: list[int], tmp_path: Path
) -> None:
    save_model(tmp_path, kind, **_MODELS[kind] | changes, max_position_embeddings=_MAX_MODEL_LEN)
    with recorded_variants("sm_90") as recorded:
        runner = make_runner(
            tmp_path, num_blocks=256, max_model_len=_MAX_MODEL_LEN, max_step_tokens=largest.num_tokens
        )
        warm_up_kernels(largest, runner.steps, BLOCK_SIZE)
        compiled = set(recorded)
        maker = PlanMaker()
        for row in range(len(query_lens)):
            maker.begin(row, range(_MAX_MODEL_LEN // BLOCK_SIZE))
        plan = maker.plan({row: [0] * count for row, count in enumerate(query_lens)})
        runner.steps.update(plan)
        rows = [SamplingRow("a", SamplingParams(max_new_tokens=1), [0], 1) for _ in query_lens]
        runner.steps.compute(runner.steps.prepare(plan), rows=rows)
        assert _describe(recorded - compiled) == []


_fp32_logits = Decoder.logits


def _bf16_logits(model: Decoder, hidden: torch.Tensor) -> torch.Tensor | None:
    logits = _fp32_logits(model, hidden)
    return None if logits is None else logits.bfloat16()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1, top_logprobs=2),
        SamplingParams(1, temperature=0.7, top_logprobs=2),
        SamplingParams(1, temperature=0.7, top_p=0.9, prompt_logprobs=1),
        SamplingParams(1, temperature=0.7, top_k=5, logit_bias=((0, 1.0),)),
        SamplingParams(1, num_beams=2),
    ],
    ids=["greedy", "sampled", "truncated", "biased", "beams"],
)
def test_requests_that_the_host_samples_compile_no_new_variants(
    params: SamplingParams, tmp_path: Path
) -> None:
    save_model(tmp_path, "llama", **_HEADS, max_position_embeddings=_MAX_MODEL_LEN)
    with recorded_variants("sm_90") as recorded:
        runner = make_runner(tmp_path, num_blocks=256, max_model_len=_MAX_MODEL_LEN)
        # On a GPU the logits have the model's dtype, which is bf16 for most models.
        with patch.object(Decoder, "logits", _bf16_logits):
            warm_up_kernels(_LARGEST, runner.steps, BLOCK_SIZE)
            compiled = set(recorded)
            maker = PlanMaker()
            for row in range(2):
                maker.begin(row, range(_MAX_MODEL_LEN // BLOCK_SIZE), 0)
            plan = maker.plan({0: [0], 1: [0]})
            runner.steps.update(plan)
            rows = [SamplingRow(str(i), params, [0], 1) for i in range(2)]
            logits = runner.steps.compute(runner.steps.prepare(plan), rows=rows).logits
            assert logits is not None
            assert logits.dtype is torch.bfloat16
            Sampler(runner.config.vocab_size, logits.device).sample(logits, rows)
        assert _describe(recorded - compiled) == []


def _describe(variants: set[Variant]) -> list[str]:
    return [f"{variant.kernel}: {variant.specialization}" for variant in variants]
