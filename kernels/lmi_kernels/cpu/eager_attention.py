"""Attention of tensors over a native KV cache, outside of recorded programs."""

from __future__ import annotations

import ctypes

import torch

from lmi_kernels.attention.paged_sequences import ScoreRules
from lmi_kernels.cpu.structs import Attention, KvLayer, RopeAndStore, Step, address, score_fields
from lmi_kernels.cpu.team import Program, Team


class LayerAttention:
    """Rotary embedding, cache write and attention of one layer, as a reusable program.

    See `Recorder.rope_and_store` and `Recorder.attention`.
    """

    def __init__(self, team: Team, cache: KvLayer, num_heads: int, rules: ScoreRules) -> None:
        self._team, self._width = team, num_heads * cache.head_dim
        self._scratch_bytes = team.attention_scratch_bytes(num_heads, cache.num_kv_heads, cache.head_dim)
        self._keep_alive = (cache, rules)
        self._store = RopeAndStore(cache=ctypes.addressof(cache), num_heads=num_heads)
        self._attention = Attention(
            cache=ctypes.addressof(cache),
            num_heads=num_heads,
            scratch_bytes=self._scratch_bytes,
            **score_fields(rules),
        )
        self._program = Program([self._store, self._attention])

    def __call__(
        self,
        qkv: torch.Tensor,
        step: Step,
        cos_sin: torch.Tensor | None = None,
        interleaved: bool = False,
    ) -> torch.Tensor:
        """Attend.

        Args:
            qkv: [num_rows, (num_heads + 2 * num_kv_heads) * head_dim], fp32, contiguous; overwritten.
            step: positions, cache slots and sequences of the rows.
            cos_sin: [num_positions, rotary_dim], fp32; None: no rotation.
            interleaved: whether features 2i and 2i + 1 are rotated as a pair.

        Returns: [num_rows, num_heads * head_dim], fp32.
        """
        out = torch.empty(qkv.shape[0], self._width)
        scratch = self._team.scratch("scratch", self._scratch_bytes, torch.uint8)
        store, attention = self._store, self._attention
        store.qkv = attention.q = qkv.data_ptr()
        store.qkv_stride = attention.q_stride = qkv.stride(0)
        store.cos_sin = address(cos_sin)
        store.rotary_dim = 0 if cos_sin is None else cos_sin.shape[1]
        store.interleaved = interleaved
        attention.y, attention.y_stride = out.data_ptr(), out.stride(0)
        attention.scratch = scratch.data_ptr()
        self._team.run(self._program, step)
        return out
