"""Grouped-query self-attention on this rank's heads, over the KV cache."""

from __future__ import annotations

import torch

import lmi_kernels
from engines.kv_cache import AttentionMetadata, KvCache
from engines.layers.linear import Linear, RowParallelLinear
from engines.stopwatch import Stopwatch


class Attention:
    """Fused qkv projection, rotary, cache write, attention, output projection."""

    def __init__(
        self,
        layer: int,
        qkv: Linear,
        output: RowParallelLinear,
        num_kv_heads: int,
        head_dim: int,
        stopwatch: Stopwatch,
    ) -> None:
        """`num_kv_heads` is this rank's; `qkv` gives its query heads, then key heads, then value heads."""
        self._layer = layer
        self._qkv = qkv
        self._output = output
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._stopwatch = stopwatch

    def __call__(self, x: torch.Tensor, cache: KvCache, metadata: AttentionMetadata) -> torch.Tensor:
        """x: [num_rows, hidden] -> [num_rows, hidden], the same on every rank."""
        num_rows = x.shape[0]
        qkv = self._qkv(x).view(num_rows, -1, self._head_dim)
        values_from = qkv.shape[1] - self._num_kv_heads
        keys_from = values_from - self._num_kv_heads
        # Queries and keys turn alike and lie side by side: one call turns both.
        lmi_kernels.rotary_(qkv[:, :values_from], metadata.cos, metadata.signed_sin)
        pool = cache.layers[self._layer]
        tokens = metadata.num_tokens
        keys_values = qkv[:tokens, keys_from:].view(tokens, 2, self._num_kv_heads, self._head_dim)
        self._stopwatch.start()
        lmi_kernels.store_kv(keys_values, pool, metadata.slot_mapping)
        q = qkv[:, :keys_from]
        out = q.new_empty(q.shape)
        out[tokens:] = 0
        lmi_kernels.attention(q, pool, metadata.groups, cache.workspace, out)
        self._stopwatch.stop("attention")
        return self._output(out.view(num_rows, -1))
