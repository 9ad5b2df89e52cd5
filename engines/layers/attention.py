"""A layer's self-attention on this rank's heads, over the KV cache."""

from __future__ import annotations

from collections.abc import Callable

import torch

import lmi_kernels
from engines.kv_cache import KvCache
from engines.layers.attention_rule import AttentionRule
from engines.layers.step_attention import StepAttention
from engines.stopwatch import Stopwatch


class Attention:
    """Fused qkv projection, attention, output projection."""

    def __init__(
        self,
        layer: int,
        qkv: lmi_kernels.LinearWeight,
        output: Callable[[torch.Tensor], torch.Tensor],
        rule: AttentionRule,
        stopwatch: Stopwatch,
    ) -> None:
        """
        Args:
            qkv: projects to this rank's query heads, then key heads, then value heads.
            output: a `RowParallelLinear`, or its `partial`.
        """
        self._layer = layer
        self._qkv = qkv
        self._output = output
        self._rule = rule
        self._stopwatch = stopwatch

    def __call__(self, x: torch.Tensor, cache: KvCache, step: StepAttention) -> torch.Tensor:
        """x: [num_rows, hidden] -> [num_rows, hidden], as `output` returns it."""
        qkv = lmi_kernels.linear(x, self._qkv)
        self._stopwatch.start()
        out = step.attend(qkv, self._rule, cache.layers[self._layer])
        self._stopwatch.stop("attention")
        return self._output(out)
