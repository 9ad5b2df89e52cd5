"""Attention with native CPU kernels, one call per operation, for models that are not recorded as programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engines.layers.attention_params import AttentionParams
from lmi_kernels.cpu import LayerAttention, Step, Team

LayerAttentions = dict[int, tuple[AttentionParams, LayerAttention]]
"""Attention of each layer, and the parameters that it was made for, by the address of the layer's cache."""


@dataclass(frozen=True, slots=True)
class RowAngles:
    """Cosines and sines of a step's rows, instead of a table for all positions."""

    cos_sin: torch.Tensor
    """[num_rows, dim], fp32: cosines of dim / 2 angles, then sines."""
    interleaved: bool
    step: Step
    """Copy of the step with row numbers as positions."""
    rows: torch.Tensor
    """Row numbers, int32. `step` points to them."""

    @classmethod
    def of(cls, step: Step, cos_sin: torch.Tensor, interleaved: bool) -> RowAngles:
        rows, numbered = torch.arange(len(cos_sin), dtype=torch.int32), Step.from_buffer_copy(step)
        numbered.positions = rows.data_ptr()
        return cls(cos_sin, interleaved, numbered, rows)


@dataclass(frozen=True, slots=True)
class NativeStepAttention:
    """A `StepAttention` over a `NativeKvCache`."""

    team: Team
    layers: LayerAttentions
    """Filled on first use."""
    step: Step
    positions: torch.Tensor
    """[num_tokens], int64."""
    slot_mapping: torch.Tensor
    """[num_tokens], int32."""
    wanted_rows: torch.Tensor
    """[num_wanted], int32."""

    def attend(
        self, qkv: torch.Tensor, params: AttentionParams, pool: Any, angles: RowAngles | None = None
    ) -> torch.Tensor:
        """See `StepAttention.attend`.

        pool: the layer's `KvLayer`; angles: rotate queries and keys by these; None: no rotation here.
        """
        made_for, layer = self.layers.get(pool.data, (None, None))
        if layer is None or made_for is not params:
            layer = LayerAttention(self.team, pool, params.num_heads, params.score_rules)
            self.layers[pool.data] = params, layer
        qkv = qkv.contiguous()
        if angles is not None:
            return layer(qkv, angles.step, angles.cos_sin, angles.interleaved)
        return layer(qkv, self.step)
