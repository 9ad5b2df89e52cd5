"""How one layer attends on this rank: an argument of each step's attention."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch

from engines.models.config import AttentionSpec


@dataclass(frozen=True)
class AttentionRule:
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

    @cached_property
    def features(self) -> frozenset[str]:
        """Names of what the rule asks for beyond attention with fully rotated heads and scale 1 / sqrt(head_dim)."""
        spec = self.spec
        rotary = spec.rotary
        uses = {
            "scale": spec.scale != self.head_dim**-0.5,
            "norms": self.norms is not None,
            "window": spec.window is not None,
            "softcap": spec.softcap is not None,
            "alibi": self.alibi_slopes is not None,
            "sinks": self.sinks is not None,
            "no rotary": rotary is None,
            "partial rotary": rotary is not None and rotary.dim != self.head_dim,
            "interleaved rotary": rotary is not None and rotary.interleaved,
        }
        return frozenset(name for name, used in uses.items() if used)

    def require(self, supported: Collection[str], error: type[Exception] = ValueError) -> None:
        """Raise `error` when the rule has features that a backend does not support."""
        missing = self.features.difference(supported)
        if missing:
            raise error(f"attention with {', '.join(sorted(missing))} is not supported here")
