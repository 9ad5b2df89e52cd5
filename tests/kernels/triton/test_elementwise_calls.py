"""The elementwise operations as models call them, in Triton's interpreter. Their checks call only the launchers."""

from __future__ import annotations

import pytest
import torch

from lmi_kernels import Activation, activate_and_mul, add_layer_norms, layer_norms, rope_and_store
from lmi_kernels._triton import INTERPRETED
from tests.kernels.references.rope_and_store import rope_and_store_reference
from tests.support.seeds import fresh_generator

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "quick_gelu", "relu"])
def test_gates_saturate_far_from_zero(kind: Activation) -> None:
    gate_up = torch.tensor([[-1e3, -1e10, 1e3, 1e10, 2.0, 2.0, 2.0, 2.0]])
    assert activate_and_mul(gate_up, kind).tolist() == [[0, 0, 2e3, pytest.approx(2e10)]]


@pytest.mark.parametrize("count", [1, 2])
def test_layer_norms_apply_each_affine(count: int) -> None:
    generator = fresh_generator()
    x, residual = torch.randn(2, 3, 20, generator=generator).unbind()
    affines = [
        (torch.randn(20, generator=generator), torch.randn(20, generator=generator)) for _ in range(count)
    ]
    total = x + residual

    def expected(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.nn.functional.layer_norm(x, (20,), *affine, 1e-5) for affine in affines)

    torch.testing.assert_close(layer_norms(x, affines, 1e-5), expected(x))
    outs, kept = add_layer_norms(x, residual, affines, 1e-5)
    torch.testing.assert_close(outs, expected(total))
    assert torch.equal(kept, total)


@pytest.mark.parametrize("with_norms", [True, False])
def test_rope_and_store_writes_one_layer_of_a_cache(with_norms: bool) -> None:
    generator = fresh_generator()
    qkv = torch.randn(3, (4 + 2 * 2) * 16, generator=generator)
    cache = torch.randn(3, 2, 2, 2, 4, 16, generator=generator)
    before = cache.clone()
    norms = torch.randn(2, 16, generator=generator).unbind() if with_norms else None
    cos_sin = torch.randn(9, 16, generator=generator)
    positions_and_slots = torch.tensor([3, 8, 0]), torch.tensor([6, 1, -1])
    q, pool = rope_and_store_reference(qkv, cos_sin, *positions_and_slots, cache[1], 4, norms, 1e-5)
    found = rope_and_store(qkv, cos_sin, *positions_and_slots, cache[1], 4, norms, 1e-5)
    torch.testing.assert_close(found, q.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache[1], pool.float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(cache[::2], before[::2])
