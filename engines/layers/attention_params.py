"""Parameters of one layer's attention on this rank. Every call of `StepAttention.attend` takes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engines.models.config import AttentionSpec
from lmi_kernels import ScoreRules


@dataclass(frozen=True)
class AttentionParams:
    """A layer's `AttentionSpec`, with the heads and tensors of this rank."""

    spec: AttentionSpec
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norms: tuple[torch.Tensor, torch.Tensor] | None = None
    """RMSNorm weights of every query head and every key head, [head_dim] each."""
    norm_eps: float = 1e-6
    alibi_slopes: torch.Tensor | None = None
    """[num_heads], fp32."""
    sinks: torch.Tensor | None = None
    """[num_heads], fp32."""

    @property
    def score_rules(self) -> ScoreRules:
        spec = self.spec
        return ScoreRules(spec.scale, spec.window, spec.softcap, self.alibi_slopes, self.sinks)
