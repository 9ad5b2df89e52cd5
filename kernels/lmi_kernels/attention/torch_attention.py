"""Causal attention of a step's tokens on a CPU without native kernels: sequence by sequence, by torch's own."""

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
    """Keys, those of the step's own tokens, which are the last, included."""
    blocks: torch.Tensor
    """[num_blocks], int64: the blocks that hold them, in order."""
    mask: torch.Tensor | None
    """[query_len, kv_len], bool: what each token sees; None: what its position says, all tokens being new, or all."""

    @classmethod
    def of(cls, first_row: int, query_len: int, kv_len: int, blocks: torch.Tensor) -> SequenceRows:
        """As those of a step's attention: made once a step, for all layers."""
        mask = None
        if 1 < query_len < kv_len:
            mask = torch.ones(query_len, kv_len, dtype=torch.bool).tril_(kv_len - query_len)
        return cls(first_row, query_len, kv_len, blocks, mask)


def attention(
    q: torch.Tensor, pool: torch.Tensor, sequences: Sequence[SequenceRows], out: torch.Tensor
) -> None:
    """softmax(q k^T / sqrt(head_dim)) v for each token over its sequence's keys up to its own position.

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
