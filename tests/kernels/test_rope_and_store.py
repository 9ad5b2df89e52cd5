"""The reference of rope_and_store's kernel against the operations that CPUs run."""

from __future__ import annotations

import pytest
import torch

from lmi_kernels import rms_norm, rope_and_store, rotary_, store_kv
from lmi_kernels._triton import INTERPRETED
from tests.kernels.references.rope_and_store import rope_and_store_reference
from tests.support.seeds import fresh_generator


@pytest.mark.parametrize("with_norms", [True, False])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (7, 1, 80), (2, 2, 6)])
def test_reference_equals_the_cpu_operations(
    num_heads: int, num_kv_heads: int, head_dim: int, with_norms: bool
) -> None:
    generator = fresh_generator()
    num_rows = 5
    qkv = torch.randn(num_rows, (num_heads + 2 * num_kv_heads) * head_dim, generator=generator)
    pool = torch.randn(2, num_kv_heads, 4, 3, head_dim, generator=generator)
    norms = torch.randn(2, head_dim, generator=generator).unbind() if with_norms else None
    angles = torch.rand(20, head_dim // 2, generator=generator) * 6.3
    positions = torch.randint(0, 20, (num_rows,), generator=generator)
    slots = torch.randperm(12, generator=generator)[:num_rows]
    slots[3] = -1
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    q, written = rope_and_store_reference(qkv, cos_sin, positions, slots, pool, num_heads, norms, 1e-6)

    heads = qkv.view(num_rows, -1, head_dim).clone()
    rotated = heads[:, : num_heads + num_kv_heads]
    if norms is not None:
        for part, weight in zip((rotated[:, :num_heads], rotated[:, num_heads:]), norms, strict=True):
            part.copy_(rms_norm(part, weight, 1e-6))
    row_angles = angles[positions, None]
    rotary_(
        rotated,
        torch.cat((row_angles, row_angles), -1).cos(),
        torch.cat((-row_angles.sin(), row_angles.sin()), dim=-1),
    )
    real = slots >= 0
    store_kv(heads[real, num_heads:].view(-1, 2, num_kv_heads, head_dim), pool, slots[real])
    torch.testing.assert_close(q, heads[:, :num_heads].double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(written, pool.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter accepts tensors on a CPU")
def test_the_error_on_a_cpu_names_the_alternatives() -> None:
    rows = torch.zeros(1, dtype=torch.int64)
    pool = torch.zeros(2, 1, 1, 1, 4)
    with pytest.raises(RuntimeError, match="not on cpu; on a CPU use rotary_ and store_kv"):
        rope_and_store(torch.zeros(1, 12), torch.zeros(1, 4), rows, rows, pool, num_heads=1)
