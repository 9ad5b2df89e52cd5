"""A step's attention by native CPU kernels, operation by operation, for models that are not recorded as programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from engines.layers.attention_rule import AttentionRule
from engines.layers.rotary import RotaryTables
from lmi_kernels.cpu import LayerAttention, Step, Team


@dataclass(slots=True)
class NativeLayers:
    """The attention of each layer of a model over a `NativeKvCache`, made when it is first needed."""

    team: Team
    tables: RotaryTables
    made: dict[int, tuple[AttentionRule, LayerAttention]] = field(default_factory=dict)
    """By the address of the layer's cache."""

    def of(self, rule: AttentionRule, pool: Any) -> LayerAttention:
        """pool: the layer's `KvLayer`."""
        kept = self.made.get(pool.data)
        if kept is not None and kept[0] is rule:
            return kept[1]
        spec, rotary = rule.spec, rule.spec.rotary
        made = LayerAttention(
            self.team,
            pool,
            rule.num_heads,
            spec.scale,
            norms=rule.norms,
            eps=rule.norm_eps,
            cos_sin=None if rotary is None else self.tables[rotary],
            interleaved=rotary is not None and rotary.interleaved,
            window=spec.window,
            softcap=spec.softcap,
            alibi_slopes=rule.alibi_slopes,
            sinks=rule.sinks,
        )
        self.made[pool.data] = rule, made
        return made


@dataclass(frozen=True, slots=True)
class NativeStepAttention:
    """A `StepAttention` over a `NativeKvCache`."""

    layers: NativeLayers
    step: Step
    positions: torch.Tensor
    """[num_tokens], int64."""
    slot_mapping: torch.Tensor
    """[num_tokens], int32."""

    def attend(self, qkv: torch.Tensor, rule: AttentionRule, pool: Any) -> torch.Tensor:
        return self.layers.of(rule, pool)(qkv.contiguous(), self.step)
