"""layer_norms and add_layer_norms on a CPU: bit-identical to torch, and so to transformers' Falcon."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lmi_kernels import add_layer_norms, layer_norms
from tests.support.seeds import fresh_generator


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("num_tokens", "hidden"), [(1, 1), (5, 36), (33, 577)])
@torch.inference_mode()
def test_layer_norms_are_bit_identical_to_torch(
    num_tokens: int, hidden: int, count: int, dtype: torch.dtype
) -> None:
    generator = fresh_generator()
    x, residual = (torch.randn(2, num_tokens, hidden, generator=generator) * 10).to(dtype)
    affines = [torch.randn(2, hidden, generator=generator).to(dtype).unbind() for _ in range(count)]

    def expected(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.layer_norm(x, (hidden,), weight, bias, 1e-5) for weight, bias in affines]

    total = x + residual
    before = x.clone()
    assert all(map(torch.equal, layer_norms(x, affines, 1e-5), expected(before)))
    assert torch.equal(x, before)
    outs, kept = add_layer_norms(x, residual, affines, 1e-5)
    assert len(outs) == count
    assert torch.equal(kept, total)
    assert all(map(torch.equal, outs, expected(total)))


def test_layer_norms_without_a_bias() -> None:
    x, weight = torch.randn(2, 5, 36, generator=fresh_generator())
    expected = F.layer_norm(x, (36,), weight[0], None, 1e-5)
    assert torch.equal(layer_norms(x, [(weight[0], None)], 1e-5)[0], expected)
