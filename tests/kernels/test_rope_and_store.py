"""The reference that rope_and_store's kernel is held against, itself against what CPUs run."""

from __future__ import annotations

import pytest
import torch

from lmi_kernels import rms_norm, rope_and_store, rotary_, store_kv
from lmi_kernels._triton import INTERPRETED
from tests.kernels.references.rope_and_store import rope_and_store_reference
from tests.support.seeds import fresh_generator


@pytest.mark.parametrize("with_norms", [True, False])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (7, 1, 80), (2, 2, 6)])
def test_reference_is_what_cpus_compute(
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
    q, written = rope_and_store_reference(
        qkv,
        torch.cat((angles.cos(), angles.sin()), dim=-1),
        positions,
        slots,
        pool,
        num_heads,
        norms,
        1e-6,
    )

    heads = qkv.view(num_rows, -1, head_dim).clone()
    turned = heads[:, : num_heads + num_kv_heads]
    if norms is not None:
        for part, weight in zip((turned[:, :num_heads], turned[:, num_heads:]), norms, strict=True):
            part.copy_(rms_norm(part, weight, 1e-6))
    turns = angles[positions, None]
    rotary_(turned, torch.cat((turns, turns), -1).cos(), torch.cat((-turns.sin(), turns.sin()), dim=-1))
    real = slots >= 0
    store_kv(heads[real, num_heads:].view(-1, 2, num_kv_heads, head_dim), pool, slots[real])
    torch.testing.assert_close(q, heads[:, :num_heads].double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(written, pool.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter takes tensors on a CPU")
def test_a_cpu_is_told_what_to_use_instead() -> None:
    rows = torch.zeros(1, dtype=torch.int64)
    pool = torch.zeros(2, 1, 1, 1, 4)
    with pytest.raises(RuntimeError, match="not on cpu; on a CPU use rotary_ and store_kv"):
        rope_and_store(torch.zeros(1, 12), torch.zeros(1, 4), rows, rows, pool, num_heads=1)
