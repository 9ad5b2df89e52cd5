"""layer_norms and add_layer_norms on a CPU: bit-identical to torch, and so to transformers' Falcon."""

from __future__ import annotations

import pytest
import torch

from lmi_kernels import add_layer_norms, layer_norms
from tests.support.seeds import fresh_generator

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def _norms(
    generator: torch.Generator, count: int, hidden: int, dtype: torch.dtype
) -> list[torch.nn.LayerNorm]:
    norms = [torch.nn.LayerNorm(hidden, eps=1e-5).to(dtype) for _ in range(count)]
    for norm in norms:
        norm.weight.copy_(torch.randn(hidden, generator=generator))
        norm.bias.copy_(torch.randn(hidden, generator=generator))
    return norms


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("num_tokens", "hidden"), [(1, 1), (5, 36), (33, 577)])
@torch.inference_mode()
def test_layer_norms_are_bit_identical_to_torch(
    num_tokens: int, hidden: int, count: int, dtype: torch.dtype
) -> None:
    generator = fresh_generator()
    x, residual = (torch.randn(2, num_tokens, hidden, generator=generator) * 10).to(dtype)
    norms = _norms(generator, count, hidden, dtype)
    affines = [(norm.weight, norm.bias) for norm in norms]
    total = x + residual
    before = x.clone()
    assert all(map(torch.equal, layer_norms(x, affines, 1e-5), [norm(x) for norm in norms]))
    assert torch.equal(x, before)
    outs, kept = add_layer_norms(x, residual, affines, 1e-5)
    assert len(outs) == count
    assert torch.equal(kept, total)
    assert all(map(torch.equal, outs, [norm(total) for norm in norms]))


def test_layer_norms_without_a_bias() -> None:
    x, weight = torch.randn(2, 5, 36, generator=fresh_generator())
    expected = torch.nn.functional.layer_norm(x, (36,), weight[0], None, 1e-5)
    assert torch.equal(layer_norms(x, [(weight[0], None)], 1e-5)[0], expected)


@pytest.mark.parametrize("count", [0, 3])
def test_zero_or_three_outputs_are_rejected(count: int) -> None:
    x = torch.zeros(1, 4)
    with pytest.raises(ValueError, match=f"{count} pairs of weight and bias; accepted are 1 and 2"):
        layer_norms(x, [(x[0], x[0])] * count, 1e-5)
    with pytest.raises(ValueError, match=f"{count} pairs"):
        add_layer_norms(x, x, [(x[0], x[0])] * count, 1e-5)
