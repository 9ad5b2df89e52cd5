"""Reference for `rope_and_store` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lmi_kernels.attention.rope_and_store import rope_and_store
from tests.kernels.references.check import Inputs, OpCheck, Results

Norms = tuple[torch.Tensor, torch.Tensor] | None


def rope_and_store_reference(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor | None,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    pool: torch.Tensor,
    num_heads: int,
    norms: Norms,
    eps: float,
) -> Results:
    """Compute in fp64, except that norms round before and after the product, which is part of the contract."""
    _, num_kv_heads, _, block_size, head_dim = pool.shape
    q_norm, k_norm = norms if norms is not None else (None, None)
    q, k, v = qkv.view(len(qkv), -1, head_dim).split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    q, k = _norm_reference(q, q_norm, eps), _norm_reference(k, k_norm, eps)
    if cos_sin is not None:
        cos, sin = cos_sin.double()[positions, None].chunk(2, dim=-1)
        q, k = (_rotate_reference(x, cos, sin) for x in (q, k))
    pool = pool.double()
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            place = slot // block_size, slot % block_size
            pool[0, :, *place], pool[1, :, *place] = k[row], v[row].double()
    return q, pool


def _norm_reference(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    x64 = x.double()
    if weight is None:
        return x64
    rounded = (x64 * (x64.square().mean(-1, keepdim=True) + eps).rsqrt()).to(weight.dtype)
    return (rounded * weight).to(x.dtype).double()


def _rotate_reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half, x = cos.shape[-1], x.clone()
    for i in range(half):
        low, high = x[..., i].clone(), x[..., i + half].clone()
        x[..., i] = low * cos[..., i] - high * sin[..., i]
        x[..., i + half] = high * cos[..., i] + low * sin[..., i]
    return x


def _norm_dtype(head_dim: int, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of norm weights. Only Gemma 3 has norms of 256 features, and its weights are in fp32."""
    return torch.float32 if head_dim == 256 else dtype


def _launch(qkv: torch.Tensor, pool: torch.Tensor, norms: Norms, **inputs: Any) -> Results:
    return rope_and_store(qkv, pool=pool, norms=norms, **inputs), pool


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    def weights(head_dim: int) -> torch.Tensor:
        return (1 + normal(head_dim) / 4).to(_norm_dtype(head_dim, dtype))

    for num_rows, num_heads, num_kv_heads, head_dim, norms, rotary_dim in (
        (1, 1, 1, 64, False, 64),
        (5, 9, 3, 64, False, 64),
        (3, 13, 1, 80, True, 80),
        (4, 6, 2, 96, True, 96),
        (3, 8, 2, 128, True, 128),
        (2, 3, 1, 256, False, 256),
        (3, 7, 1, 64, False, 0),
        (3, 5, 2, 64, True, 16),
        (2, 4, 2, 80, False, 32),
        (2, 3, 1, 30, True, 10),
        (2, 3, 1, 256, True, 256),
        (3, 2, 2, 256, False, 64),
    ):
        pool = normal(2, num_kv_heads, 3, 4, head_dim)
        # Rows without a slot are padding.
        slots = torch.randperm(12, generator=generator)[:num_rows]
        slots[num_rows // 2 + 1 :] = -1
        angles = torch.rand(20, rotary_dim // 2, generator=generator) * 6.3
        yield {
            "qkv": normal(num_rows, (num_heads + 2 * num_kv_heads) * head_dim),
            "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=-1) if rotary_dim else None,
            "positions": torch.randint(0, 20, (num_rows,), generator=generator),
            "slot_mapping": slots,
            "pool": pool,
            "num_heads": num_heads,
            "norms": (weights(head_dim), weights(head_dim)) if norms else None,
            "eps": 1e-6,
        }


_MODELS = (
    (9, 3, 64, False, 64),  # SmolLM2-135M
    (32, 8, 128, False, 128),  # Llama-3-8B, Mixtral
    (16, 8, 128, True, 128),  # Qwen3-0.6B
    (128, 8, 64, False, 64),  # Falcon-40B
    (71, 1, 64, False, 64),  # Falcon-7B
    (32, 32, 64, False, 0),  # Falcon-RW-1B, with ALiBi
    (32, 32, 80, False, 32),  # Phi-2
    (64, 64, 96, False, 24),  # GPT-NeoX 20B
    (32, 2, 128, False, 64),  # half of each head is rotated
    # Other head dims.
    (32, 32, 80, False, 80),
    (64, 64, 96, False, 96),
    (8, 1, 256, True, 256),
)
"""Query heads, KV heads, head dim, norms, rotated features."""


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    def meta(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    for num_heads, num_kv_heads, head_dim, norms, rotary_dim in _MODELS:
        numbers, weight = meta(32, dtype=torch.int64), meta(head_dim, dtype=_norm_dtype(head_dim, dtype))
        yield {
            "qkv": meta(32, (num_heads + 2 * num_kv_heads) * head_dim),
            "cos_sin": meta(8192, rotary_dim, dtype=torch.float32) if rotary_dim else None,
            "positions": numbers,
            "slot_mapping": numbers,
            "pool": meta(2, num_kv_heads, 1024, 64, head_dim),
            "num_heads": num_heads,
            "norms": (weight, weight) if norms else None,
            "eps": 1e-6,
        }


CHECKS = (OpCheck("rope_and_store", _launch, rope_and_store_reference, _examples, _production),)
