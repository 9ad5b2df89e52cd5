"""Interface for the attention of one step. Each backend has an implementation, and all layers share one instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

import lmi_kernels
from engines.layers.attention_params import AttentionParams
from engines.models.config import Rotary


class StepAttention(Protocol):
    """Positions of a step's tokens, their slots in the KV cache, and the keys that they attend to."""

    @property
    def positions(self) -> torch.Tensor:
        """Position of each row's token in its sequence, [num_rows], int64."""

    @property
    def slot_mapping(self) -> torch.Tensor | None:
        """Cache slot of each row, int64; -1: padding. None: not known, and no row is padding."""

    @property
    def wanted_rows(self) -> torch.Tensor | None:
        """Numbers of the rows whose hidden states are wanted, [num_wanted]; None: all. The other rows are only computed
        for their keys and values, so the last layer omits them after attention."""

    def attend(self, qkv: torch.Tensor, params: AttentionParams, pool: torch.Tensor) -> torch.Tensor:
        """Apply head norms and rotary embedding, write keys and values to the cache, and compute attention.

        Args:
            qkv: [num_rows, (num_heads + 2 * num_kv_heads) * head_dim]: query heads, key heads, value heads. May be
                overwritten.
            params: parameters of the layer.
            pool: the layer's KV cache, [2, num_kv_heads, num_blocks, block_size, head_dim], written in place.

        Returns: [num_rows, num_heads * head_dim]. Padding rows hold finite numbers.
        """


@dataclass(frozen=True, slots=True)
class TorchStepAttention:
    """A `StepAttention` for CPUs without native kernels. Torch computes one sequence after the other."""

    positions: torch.Tensor
    """[num_tokens], int64."""
    slot_mapping: torch.Tensor
    """[num_tokens], int64."""
    rotary: Mapping[Rotary, tuple[torch.Tensor, torch.Tensor]]
    """Cosines and signed sines of the rows' positions, [num_tokens, 1, dim] each, fp32."""
    sequences: tuple[lmi_kernels.SequenceRows, ...]
    wanted_rows: torch.Tensor | None = None
    """Int64."""

    def attend(self, qkv: torch.Tensor, params: AttentionParams, pool: torch.Tensor) -> torch.Tensor:
        num_tokens = len(qkv)
        qkv = qkv.view(num_tokens, -1, params.head_dim)
        values_from = params.num_heads + params.num_kv_heads
        if params.norms is not None:
            parts = qkv[:, : params.num_heads], qkv[:, params.num_heads : values_from]
            for part, weight in zip(parts, params.norms, strict=True):
                part.copy_(lmi_kernels.rms_norm(part, weight, params.norm_eps))
        rotary = params.spec.rotary
        if rotary is not None:
            # Queries and keys are adjacent and rotated by the same angles, so one call rotates both.
            turned = qkv[:, :values_from, : rotary.dim]
            lmi_kernels.rotary_(turned, *self.rotary[rotary])
        keys_values = qkv[:, params.num_heads :].view(num_tokens, 2, params.num_kv_heads, params.head_dim)
        lmi_kernels.store_kv(keys_values, pool, self.slot_mapping)
        q = qkv[:, : params.num_heads]
        out = q.new_empty(q.shape)
        lmi_kernels.attention(q, pool, self.sequences, params.score_rules, out)
        return out.view(num_tokens, -1)
