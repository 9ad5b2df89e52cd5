"""Self-attention of one layer over the KV cache, for this rank's heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import lmi_kernels
from engines.kv_cache import KvCache
from engines.layers.attention_params import AttentionParams
from engines.layers.step_attention import StepAttention
from engines.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Fused qkv projection, attention, output projection."""

    layer: int
    qkv: lmi_kernels.LinearWeight
    """Projects to this rank's query heads, then key heads, then value heads."""
    output: lmi_kernels.LinearWeight
    params: AttentionParams
    stopwatch: Stopwatch

    def __call__(
        self, x: torch.Tensor, cache: KvCache, step: StepAttention, add_to: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute attention. x: [num_rows, hidden] -> [num_wanted, hidden]. The caller sums the results over ranks.

        add_to: as in `lmi_kernels.linear`.
        """
        qkv = lmi_kernels.linear(x, self.qkv)
        self.stopwatch.start()
        out = step.attend(qkv, self.params, cache.layers[self.layer])
        self.stopwatch.stop("attention")
        if (rows := self.wanted_rows(cache, step)) is not None:
            out = out[rows]
        return lmi_kernels.linear(out, self.output, add_to)

    def wanted_rows(self, cache: KvCache, step: StepAttention) -> torch.Tensor | None:
        """Return the numbers of the rows that this layer computes to its end; None: all, as other layers follow."""
        return step.wanted_rows if self.layer + 1 == len(cache.layers) else None
