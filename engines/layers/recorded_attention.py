"""Attention while a model is recorded as a program of native operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engines.layers.attention_params import AttentionParams
from engines.layers.rotary import RotaryTables
from lmi_kernels.cpu import NotRecorded, Rows


@dataclass(frozen=True, slots=True)
class RecordedAttention:
    """A `StepAttention` that computes nothing. It adds operations to the recorder of its input."""

    positions: Rows
    wanted_rows: Rows
    tables: RotaryTables
    slot_mapping: None = None

    def attend(self, qkv: torch.Tensor, params: AttentionParams, pool: Any) -> torch.Tensor:
        """Record a layer's attention. pool: the layer's `KvLayer`."""
        if not isinstance(qkv, Rows):
            raise NotRecorded("attention over something other than recorded rows")
        rotary = params.spec.rotary
        turned = qkv.recorder.rope_and_store(
            qkv,
            params.num_heads,
            params.norms,
            params.norm_eps,
            None if rotary is None else self.tables[rotary],
            pool,
        )
        return qkv.recorder.attention(turned, params.num_heads, pool, params.score_rules)
