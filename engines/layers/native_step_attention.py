"""Attention with native CPU kernels, one call per operation, for models that are not recorded as programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from engines.layers.attention_params import AttentionParams
from lmi_kernels.cpu import LayerAttention, Step, Team


@dataclass(slots=True)
class NativeLayers:
    """The attention of each layer of a model over a `NativeKvCache`, made on first use."""

    team: Team
    attention_by_layer: dict[int, tuple[AttentionParams, LayerAttention]] = field(default_factory=dict)
    """Parameters and attention of each layer, by the address of the layer's cache."""

    def layer_attention(self, params: AttentionParams, pool: Any) -> LayerAttention:
        """Return the attention of a layer. pool: the layer's `KvLayer`."""
        cached = self.attention_by_layer.get(pool.data)
        if cached is not None and cached[0] is params:
            return cached[1]
        attention = LayerAttention(
            self.team,
            pool,
            params.num_heads,
            params.spec.scale,
            window=params.spec.window,
            softcap=params.spec.softcap,
            sinks=params.sinks,
        )
        self.attention_by_layer[pool.data] = params, attention
        return attention


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

    layers: NativeLayers
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
        """See `StepAttention.attend`. angles: rotate queries and keys by these; None: no rotation here."""
        layer, qkv = self.layers.layer_attention(params, pool), qkv.contiguous()
        if angles is not None:
            return layer(qkv, angles.step, angles.cos_sin, angles.interleaved)
        return layer(qkv, self.step)
