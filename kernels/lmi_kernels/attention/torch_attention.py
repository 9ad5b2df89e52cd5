"""Causal attention with torch, one sequence after the other, for CPUs without native kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lmi_kernels.attention.paged_sequences import ScoreRules


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """A sequence's token rows in a step, and the places of its keys and values."""

    first_row: int
    query_len: int
    kv_len: int
    """Number of keys, including those of this step's tokens, which come last."""
    blocks: torch.Tensor
    """[num_blocks], int64: blocks that hold the keys, in order."""


def attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    sequences: Sequence[SequenceRows],
    rules: ScoreRules,
    out: torch.Tensor,
) -> None:
    """Compute softmax(rules(q k^T)) v for each token, over its sequence's keys up to its own position.

    Args:
        q: [num_tokens, num_heads, head_dim].
        pool: [2, num_kv_heads, num_blocks, block_size, head_dim], keys first, q's dtype. It already holds this step's
            keys and values. Keys before all windows are not read.
        out: [num_tokens, num_heads, head_dim], written in place. Rows without a sequence are not changed.
    """
    block_size = pool.shape[3]
    for each in sequences:
        rows = slice(each.first_row, each.first_row + each.query_len)
        first_query, end = each.kv_len - each.query_len, each.kv_len
        first_key = 0 if rules.window is None else max(0, first_query + 1 - rules.window)
        skipped = first_key // block_size
        pages = pool.index_select(2, each.blocks[skipped:]).flatten(2, 3)
        keys, values = pages[:, :, first_key - skipped * block_size : end - skipped * block_size]
        distances = torch.arange(first_key, end) - torch.arange(first_query, end)[:, None]
        seen = distances <= 0
        if rules.window is not None:
            seen &= distances > -rules.window
        queries = q[rows].transpose(0, 1)
        if rules.softcap is None and rules.alibi_slopes is None and rules.sinks is None:
            # If the first query sees only the first key, this is a whole prompt, and torch needs no mask.
            causal = first_key == first_query and (rules.window is None or rules.window >= each.query_len)
            found = F.scaled_dot_product_attention(
                queries[None],
                keys[None],
                values[None],
                attn_mask=None if causal or each.query_len == 1 else seen,
                is_causal=causal,
                scale=rules.scale,
                enable_gqa=True,
            )[0]
        else:
            found = _by_formula(queries, keys, values, distances, seen, rules)
        out[rows] = found.transpose(0, 1)


def _by_formula(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    distances: torch.Tensor,
    seen: torch.Tensor,
    rules: ScoreRules,
) -> torch.Tensor:
    """Compute attention without torch's fused operation, which lacks some of the rules.

    Args:
        queries: [num_heads, num_queries, head_dim].
        keys, values: [num_kv_heads, num_keys, head_dim].
        distances: [num_queries, num_keys]: key position minus query position.
        seen: [num_queries, num_keys], bool: whether a query sees a key.

    Returns: [num_heads, num_queries, head_dim].
    """
    # All query heads of a KV head are rows of one matrix product.
    groups = queries.reshape(len(keys), -1, queries.shape[2])
    scores = (groups @ keys.transpose(1, 2)).view(len(queries), *seen.shape) * rules.scale
    if rules.softcap is not None:
        scores = rules.softcap * torch.tanh(scores / rules.softcap)
    if rules.alibi_slopes is not None:
        scores = scores + rules.alibi_slopes[:, None, None] * distances
    scores = scores.masked_fill(~seen, -torch.inf)
    if rules.sinks is not None:
        sinks = rules.sinks[:, None, None].expand(-1, seen.shape[0], 1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return (weights.reshape(*groups.shape[:2], -1) @ values).view(queries.shape)
