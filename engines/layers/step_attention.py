"""How a step's tokens attend: made once per step, an argument of every layer. One implementation for each backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

import lmi_kernels
from engines.layers.attention_rule import AttentionRule
from engines.models.config import Rotary


class StepAttention(Protocol):
    """The positions of a step's tokens, their slots in the cache, and the keys that they see."""

    @property
    def positions(self) -> torch.Tensor:
        """The position of each token row in its sequence, [num_rows], int64."""

    @property
    def slot_mapping(self) -> torch.Tensor:
        """The slot of each token row, int64; -1: padding."""

    def attend(self, qkv: torch.Tensor, rule: AttentionRule, pool: torch.Tensor) -> torch.Tensor:
        """Head norms, rotary embedding, cache write, attention.

        Args:
            qkv: [num_rows, (num_heads + 2 * num_kv_heads) * head_dim]: query heads, key heads, value heads; may be
                overwritten.
            rule: the layer's.
            pool: the layer's part of the cache, [2, num_kv_heads, num_blocks, block_size, head_dim], written.

        Returns: [num_rows, num_heads * head_dim]; padding rows hold finite numbers.
        """


@dataclass(frozen=True, slots=True)
class TorchStepAttention:
    """Attention by torch, sequence by sequence (`lmi_kernels.attention`), on CPUs without native kernels."""

    positions: torch.Tensor
    """[num_tokens], int64."""
    slot_mapping: torch.Tensor
    """[num_tokens], int64."""
    rotary: Mapping[Rotary, tuple[torch.Tensor, torch.Tensor]]
    """Cosines and signed sines of the rows' positions, [num_tokens, 1, dim] each, fp32."""
    sequences: tuple[lmi_kernels.SequenceRows, ...]

    def attend(self, qkv: torch.Tensor, rule: AttentionRule, pool: torch.Tensor) -> torch.Tensor:
        num_tokens = len(qkv)
        qkv = qkv.view(num_tokens, -1, rule.head_dim)
        values_from = rule.num_heads + rule.num_kv_heads
        if rule.norms is not None:
            parts = qkv[:, : rule.num_heads], qkv[:, rule.num_heads : values_from]
            for part, weight in zip(parts, rule.norms, strict=True):
                part.copy_(lmi_kernels.rms_norm(part, weight, rule.norm_eps))
        rotary = rule.spec.rotary
        if rotary is not None:
            # Queries and keys turn alike and are adjacent: one call turns both.
            turned = qkv[:, :values_from, : rotary.dim]
            lmi_kernels.rotary_(turned, *self.rotary[rotary])
        keys_values = qkv[:, rule.num_heads :].view(num_tokens, 2, rule.num_kv_heads, rule.head_dim)
        lmi_kernels.store_kv(keys_values, pool, self.slot_mapping)
        q = qkv[:, : rule.num_heads]
        out = q.new_empty(q.shape)
        lmi_kernels.attention(q, pool, self.sequences, rule.scores, out)
        return out.view(num_tokens, -1)
