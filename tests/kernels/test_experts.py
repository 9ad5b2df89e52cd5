from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import MixtralConfig, Qwen3MoeConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from lmi_kernels import Activation, ExpertWeights, experts, pack_experts
from tests.kernels.references.experts import experts_reference
from tests.support.examples import examples
from tests.support.seeds import fresh_generator, generator_from

pytestmark = pytest.mark.usefixtures("torch_kernels")


def _layer(
    generator: torch.Generator, num_experts: int, hidden: int, intermediate: int, exact_in_fp16: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    gate_up = torch.randn(num_experts, 2 * intermediate, hidden, generator=generator) / hidden**0.5
    down = torch.randn(num_experts, hidden, intermediate, generator=generator) / intermediate**0.5
    return (gate_up.half().float(), down.half().float()) if exact_in_fp16 else (gate_up, down)


@examples(40)
@given(
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["silu", "gelu", "gelu_tanh"]),
    st.integers(0, 2**31 - 1),
)
@torch.inference_mode()
def test_experts_equal_the_reference(
    rows: int, num_experts: int, top_k: int, packed: bool, renormalize: bool, gated: Activation, seed: int
) -> None:
    generator = generator_from(seed)
    gate_up, down = _layer(generator, num_experts, 36, 50, packed)
    x = torch.randn(rows, 36, generator=generator)
    logits = torch.randn(rows, num_experts, generator=generator).round(decimals=1)  # with ties
    logits[:, 0] -= 9  # an expert that almost no row selects
    top_k = min(top_k, num_experts)
    weights = pack_experts(gate_up, down, gated=gated)
    assert weights.per_expert is not None
    assert all((part.packed is not None) == packed for pair in weights.per_expert for part in pair)
    found = experts(x, logits, weights, top_k, renormalize=renormalize)
    (expected,) = experts_reference(x, logits, gate_up, down, top_k, None, renormalize, gated)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("block_type", "config_type", "top_k", "renormalize"),
    [
        (MixtralSparseMoeBlock, MixtralConfig, 1, True),
        (MixtralSparseMoeBlock, MixtralConfig, 2, True),
        (MixtralSparseMoeBlock, MixtralConfig, 3, True),
        (Qwen3MoeSparseMoeBlock, Qwen3MoeConfig, 2, True),
        (Qwen3MoeSparseMoeBlock, Qwen3MoeConfig, 2, False),
    ],
)
@torch.inference_mode()
def test_experts_equal_transformers(block_type: Any, config_type: Any, top_k: int, renormalize: bool) -> None:
    generator = fresh_generator()
    sizes = {"intermediate_size": 52, "moe_intermediate_size": 52, "num_local_experts": 5, "num_experts": 5}
    config = config_type(hidden_size=36, **sizes, num_experts_per_tok=top_k, norm_topk_prob=renormalize)
    config._experts_implementation = "grouped_mm"  # the default of its models
    block = block_type(config)
    gate_up, down = _layer(generator, 5, 36, 52, False)
    block.experts.gate_up_proj.data, block.experts.down_proj.data = gate_up, down
    block.gate.weight.data = torch.randn(5, 36, generator=generator)
    x = torch.randn(23, 36, generator=generator)
    logits = torch.nn.functional.linear(x, block.gate.weight)
    found = experts(x, logits, pack_experts(gate_up, down), top_k, renormalize=renormalize)
    torch.testing.assert_close(found, block(x[None])[0], rtol=1e-5, atol=1e-5)


def test_an_empty_batch_gives_an_empty_result() -> None:
    weights = pack_experts(torch.ones(2, 6, 4), torch.ones(2, 4, 3))
    assert experts(torch.empty(0, 4), torch.empty(0, 2), weights, 2).shape == (0, 4)


def test_equal_logits_select_the_first_experts() -> None:
    # Expert e gives every row the value e + 1: silu(9) * up, scaled by down.
    numbers = torch.arange(1.0, 5.0)
    gate_up = torch.tensor([[9.0], [1.0]]).expand(4, 2, 1)
    down = (numbers / torch.nn.functional.silu(torch.tensor(9.0)))[:, None, None]
    x = torch.ones(3, 1)
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 5.0, 5.0, 5.0], [5.0, 1.0, 2.0, 2.0]])
    found = experts(x, logits, pack_experts(gate_up, down), 1)
    torch.testing.assert_close(found[:, 0], torch.tensor([1.0, 2.0, 1.0]))
    found = experts(x[:2], logits[:2], pack_experts(gate_up, down), 2)
    torch.testing.assert_close(found[:, 0], torch.tensor([1.5, 2.5]))


def test_empty_weights_are_rejected() -> None:
    with pytest.raises(ValueError, match="one by one or stacked"):
        experts(torch.ones(1, 1), torch.ones(1, 1), ExpertWeights(None, None), 1)
