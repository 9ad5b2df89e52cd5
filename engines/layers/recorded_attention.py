"""How tokens attend in a program of native operations: the same calls for every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engines.layers.step_attention import Heads
from lmi_kernels.cpu import NotRecorded, Rows


@dataclass(frozen=True, slots=True)
class RecordedAttention:
    """A `StepAttention` that computes nothing: it writes what is to be computed into the recorder of the rows."""

    cos_sin: torch.Tensor
    """[num_positions, head_dim], fp32: cosines, then sines."""

    @property
    def slot_mapping(self) -> torch.Tensor:
        """There is no padding."""
        return torch.empty(0, dtype=torch.int64)

    def attend(self, qkv: torch.Tensor, heads: Heads, pool: Any) -> torch.Tensor:
        """pool: the layer's `KvLayer`."""
        if not isinstance(qkv, Rows):
            raise NotRecorded("attention over something else than rows")
        turned = qkv.recorder.rope_and_store(qkv, heads.num_heads, heads.norms, heads.eps, self.cos_sin, pool)
        return qkv.recorder.attention(turned, heads.num_heads, heads.head_dim**-0.5, pool)
