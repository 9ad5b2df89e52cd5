"""Causal attention on a CPU without native kernels: torch's own, one sequence after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """A sequence's token rows in a step, and where its keys and values are."""

    first_row: int
    query_len: int
    kv_len: int
    """Number of keys, including those of the step's own tokens, which are the last."""
    blocks: torch.Tensor
    """[num_blocks], int64: the blocks that hold the keys, in order."""
    mask: torch.Tensor | None
    """[query_len, kv_len], bool: which keys each token sees; None: all for a single token, plain causality for a
    whole prompt."""

    @classmethod
    def of(cls, first_row: int, query_len: int, kv_len: int, blocks: torch.Tensor) -> SequenceRows:
        """Make the mask too, once per step for all layers."""
        mask = None
        if 1 < query_len < kv_len:
            mask = torch.ones(query_len, kv_len, dtype=torch.bool).tril_(kv_len - query_len)
        return cls(first_row, query_len, kv_len, blocks, mask)


def attention(
    q: torch.Tensor, pool: torch.Tensor, sequences: Sequence[SequenceRows], out: torch.Tensor
) -> None:
    """Compute softmax(q k^T / sqrt(head_dim)) v for each token over its sequence's keys up to its own position.

    Args:
        q: [num_tokens, num_heads, head_dim].
        pool: [2, num_kv_heads, num_blocks, block_size, head_dim], keys first, q's dtype; the step's own tokens are
            stored already.
        out: [num_tokens, num_heads, head_dim], written; rows of no sequence keep what they hold.
    """
    for each in sequences:
        rows = slice(each.first_row, each.first_row + each.query_len)
        keys, values = pool.index_select(2, each.blocks).flatten(2, 3)[:, :, : each.kv_len]
        found = F.scaled_dot_product_attention(
            q[rows].transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=each.mask,
            is_causal=each.mask is None and each.query_len > 1,
            enable_gqa=True,
        )
        out[rows] = found[0].transpose(0, 1)
