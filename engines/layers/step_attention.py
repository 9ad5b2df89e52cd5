"""How a step's tokens attend: made once a step, an argument of every layer. One implementation a kind of device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

import lmi_kernels


@dataclass(frozen=True, slots=True)
class Heads:
    """One layer's heads on this rank."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    norms: tuple[torch.Tensor, torch.Tensor] | None = None
    """RMSNorm weights, [head_dim] each, of every query head and of every key head, before they are turned (Qwen3)."""
    eps: float = 1e-6
    """Of these norms."""


class StepAttention(Protocol):
    """Where a step's tokens stand: their positions, the cache's slots that are theirs, and what they may see."""

    @property
    def slot_mapping(self) -> torch.Tensor:
        """int64, of each token row; -1: padding."""

    def attend(self, qkv: torch.Tensor, heads: Heads, pool: torch.Tensor) -> torch.Tensor:
        """Norms of heads (if any), rotary embedding, cache write, attention.

        Args:
            qkv: [num_rows, (num_heads + 2 * num_kv_heads) * head_dim]: query heads, key heads, value heads; may be
                overwritten.
            heads: the layer's.
            pool: the layer's part of the cache, [2, num_kv_heads, num_blocks, block_size, head_dim], written.

        Returns: [num_rows, num_heads * head_dim]; padding rows hold finite numbers.
        """


@dataclass(frozen=True, slots=True)
class TorchStepAttention:
    """By torch, sequence by sequence (`lmi_kernels.attention`): for CPUs without native kernels."""

    slot_mapping: torch.Tensor
    """[num_tokens], int64."""
    cos: torch.Tensor
    """[num_tokens, 1, head_dim], fp32."""
    signed_sin: torch.Tensor
    """[num_tokens, 1, head_dim], fp32; see `lmi_kernels.rotary_`."""
    sequences: tuple[lmi_kernels.SequenceRows, ...]

    def attend(self, qkv: torch.Tensor, heads: Heads, pool: torch.Tensor) -> torch.Tensor:
        num_tokens = len(qkv)
        qkv = qkv.view(num_tokens, -1, heads.head_dim)
        values_from = heads.num_heads + heads.num_kv_heads
        if heads.norms is not None:
            parts = qkv[:, : heads.num_heads], qkv[:, heads.num_heads : values_from]
            for part, weight in zip(parts, heads.norms, strict=True):
                part.copy_(lmi_kernels.rms_norm(part, weight, heads.eps))
        # Queries and keys turn alike and lie side by side: one call turns both.
        lmi_kernels.rotary_(qkv[:, :values_from], self.cos, self.signed_sin)
        keys_values = qkv[:, heads.num_heads :].view(num_tokens, 2, heads.num_kv_heads, heads.head_dim)
        lmi_kernels.store_kv(keys_values, pool, self.slot_mapping)
        q = qkv[:, : heads.num_heads]
        out = q.new_empty(q.shape)
        lmi_kernels.attention(q, pool, self.sequences, out)
        return out.view(num_tokens, -1)
