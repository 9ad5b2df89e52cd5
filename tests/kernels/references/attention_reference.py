"""Reference for attention over paged keys and values, and parts of example inputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch.utils._pytree import register_dataclass

from lmi_kernels.attention.paged_sequences import PagedSequences, ScoreRules

# Checks move the tensors in these to the device.
register_dataclass(PagedSequences)
register_dataclass(ScoreRules)


def attention_reference(
    q: torch.Tensor,
    pool: torch.Tensor,
    sequences: PagedSequences,
    cu_seqlens_q: torch.Tensor,
    rules: ScoreRules,
) -> torch.Tensor:
    """Compute attention in fp64, one sequence at a time. Rows without a sequence are 0.

    Args:
        q: [num_tokens, num_heads, head_dim].
        pool: [2, num_kv_heads, num_blocks, block_size, head_dim], keys first.
        cu_seqlens_q: [num_seqs + 1], int32: the queries of sequence i, its last tokens, are the rows
            [cu_seqlens_q[i], cu_seqlens_q[i + 1]) of q.

    Returns: [num_tokens, num_heads, head_dim], fp64.
    """
    out = torch.zeros(q.shape, dtype=torch.float64)
    rows, lens = sequences.table_rows.tolist(), sequences.seq_lens.tolist()
    for row, num_keys, (begin, end) in zip(rows, lens, pairwise(cu_seqlens_q.tolist()), strict=True):
        if num_keys:
            table = sequences.block_tables[row, : -(-num_keys // pool.shape[3])].long()
            own = pool[:, :, table].flatten(2, 3)[:, :, :num_keys]
            out[begin:end] = dense_attention(q[begin:end], own, rules)
    return out


def dense_attention(q: torch.Tensor, keys_values: torch.Tensor, rules: ScoreRules) -> torch.Tensor:
    """Compute attention of a sequence's last tokens in fp64.

    q: [num_queries, num_heads, head_dim], keys_values: [2, num_kv_heads, num_keys, head_dim] -> the shape of q.
    """
    (num_queries, num_heads, _), (_, kv_heads, num_keys, _) = q.shape, keys_values.shape
    # Earlier keys, which no query sees, may be NaN.
    first = 0 if rules.window is None else max(0, num_keys - num_queries + 1 - rules.window)
    keys, values = keys_values[:, :, first:].double().repeat_interleave(num_heads // kv_heads, dim=1)
    scores = torch.einsum("qhd,hkd->hqk", q.double(), keys) * rules.scale
    if rules.softcap is not None:
        scores = rules.softcap * torch.tanh(scores / rules.softcap)
    distance = torch.arange(first, num_keys) - torch.arange(num_keys - num_queries, num_keys)[:, None]
    if rules.alibi_slopes is not None:
        scores = scores + rules.alibi_slopes.double().view(-1, 1, 1) * distance
    hidden = distance > 0
    if rules.window is not None:
        hidden |= distance <= -rules.window
    scores = scores.masked_fill(hidden, -torch.inf)
    if rules.sinks is not None:
        sinks = rules.sinks.double().view(-1, 1, 1).expand(-1, num_queries, 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = scores.softmax(dim=-1)[..., : num_keys - first]
    return torch.einsum("hqk,hkd->qhd", weights, values)


def example_cache(
    generator: torch.Generator,
    dtype: torch.dtype,
    lens: Sequence[tuple[int, int]],
    kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int | None,
) -> tuple[torch.Tensor, PagedSequences]:
    """Make sequences of `lens`, numbers of keys and of queries, with shuffled pages. (0, 0) is padding.

    Returns: the pool, which is NaN where nothing may be read, and the sequences. Table entries that must not be read
    point to a page of NaN.
    """
    counts = [-(-keys // block_size) for keys, _ in lens]
    poisoned, *order = torch.randperm(sum(counts) + 3, generator=generator).tolist()
    pool = torch.full((2, kv_heads, sum(counts) + 3, block_size, head_dim), torch.nan)
    table_rows = torch.randperm(len(lens) + 2, generator=generator)[: len(lens)]
    tables = torch.full((len(lens) + 2, max(counts) + 2), poisoned)
    for row, (keys, queries), count in zip(table_rows, lens, counts, strict=True):
        own, order = order[:count], order[count:]
        tables[row, :count] = torch.tensor(own)
        # Pages before the window may belong to another sequence.
        first = 0 if window is None else max(0, keys - queries + 1 - window)
        content = torch.full((2, kv_heads, count * block_size, head_dim), torch.nan)
        content[:, :, first:keys] = torch.randn(content[:, :, first:keys].shape, generator=generator)
        pool[:, :, own] = content.view(2, kv_heads, count, block_size, head_dim)
    seq_lens = torch.tensor([keys for keys, _ in lens])
    rows = table_rows.where(seq_lens > 0, 1 << 30)
    return pool.to(dtype), PagedSequences(tables.int(), rows.int(), seq_lens.int())


def example_rules(
    scale: float,
    num_heads: int,
    generator: torch.Generator | None,
    alibi: bool = False,
    sinks: bool = False,
    window: int | None = None,
    softcap: float | None = None,
) -> ScoreRules:
    """Make rules with random slopes and sinks; without a generator on the meta device."""
    device = "meta" if generator is None else "cpu"
    slopes, noise = torch.empty(2, num_heads, device=device).normal_(generator=generator)
    # Sinks are as large as the sum over many keys.
    return ScoreRules(scale, window, softcap, slopes.abs() if alibi else None, 4 + noise if sinks else None)
