"""Causal attention of a step's tokens over their sequences' cached keys and values.

o = softmax(q k^T / sqrt(head_dim)) v for each query over the keys of its own sequence up to its own position.
Grouped queries (Ainslie et al. 2023, arXiv:2305.13245) share a KV head without repeating it in memory. On a CPU the
products are our own (`attention_cpu`), elsewhere torch's fused ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lmi_kernels.attention.grouped_cpu import attend_chunk, attend_singles, cuts_long_sums
from lmi_kernels.attention.grouped_plan import AttentionGroup, KvView


class Workspace:
    """Memory kept between calls, grown to the largest shape asked for, and what was found out about the machine. One
    thread at a time."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)
        self.long_sums = cuts_long_sums()

    def take(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """An uninitialised contiguous tensor of `shape`, dtype and device as `like`; valid until the next call."""
        size = 1
        for length in shape:
            size *= length
        if (
            self._buffer.numel() < size
            or self._buffer.dtype != like.dtype
            or self._buffer.device != like.device
        ):
            self._buffer = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._buffer[:size].view(shape)


def attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    groups: Sequence[AttentionGroup],
    workspace: Workspace,
    out: torch.Tensor,
) -> None:
    """Attend, group by group; rows of `out` in no group (padding) keep what they hold.

    Args:
        q: [num_tokens, num_heads, head_dim].
        pool: [2, num_kv_heads, num_blocks, block_size, head_dim], keys first, q's dtype; the step's own tokens
            are stored already.
        groups: the step's plan (`attention_plan`).
        workspace: where gathers go.
        out: [num_tokens, num_heads, head_dim], written.
    """
    num_heads, head_dim = q.shape[1:]
    kv_heads = pool.shape[1]
    share = num_heads // kv_heads
    for group in groups:
        rows = slice(group.first_row, group.first_row + group.num_seqs * group.query_len)
        keys_values = _read(pool, group, workspace)
        shape = (group.num_seqs * group.query_len, kv_heads, share, head_dim)
        queries, results = q[rows].view(shape), out[rows].view(shape)
        if group.query_len == 1:
            attend_singles(queries, keys_values, group.mask, workspace.long_sums, results)
        else:
            past = group.first_position
            attend_chunk(queries, keys_values[:, 0], past, group.mask, workspace.long_sums, results)


def attention_reference(
    q: torch.Tensor,
    pool: torch.Tensor,
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    block_tables: list[list[int]],
) -> torch.Tensor:
    """The same in plain loops and double precision, one query at a time: the oracle of the tests.

    Args as of `attention`; sequence i's queries are the last `query_lens[i]` of its `seq_lens[i]` tokens, in the
    order of rows. Returns [num_tokens, num_heads, head_dim], fp64.
    """
    two, kv_heads, _, _, head_dim = pool.shape
    num_heads = q.shape[1]
    out = torch.empty(q.shape, dtype=torch.float64)
    row = 0
    for query_len, seq_len, table in zip(query_lens, seq_lens, block_tables, strict=True):
        kv = pool[:, :, table].reshape(two, kv_heads, -1, head_dim).double()
        for position in range(seq_len - query_len, seq_len):
            for head in range(num_heads):
                k, v = kv[:, head // (num_heads // kv_heads), : position + 1]
                weights = torch.softmax(k @ q[row, head].double() / head_dim**0.5, dim=0)
                out[row, head] = weights @ v
            row += 1
    return out


def _read(pool: torch.Tensor, group: AttentionGroup, workspace: Workspace) -> torch.Tensor:
    """[2, num_seqs, num_kv_heads, kv_len, head_dim]: a view of the pool, or a copy in the workspace."""
    two, kv_heads, blocks, block_size, head_dim = pool.shape
    shape = (two, group.num_seqs, kv_heads, group.kv_len, head_dim)
    source = group.source
    if isinstance(source, KvView):
        strides = (
            kv_heads * blocks * block_size * head_dim,
            source.stride * head_dim,
            blocks * block_size * head_dim,
        )
        offset = pool.storage_offset() + source.first_slot * head_dim
        return pool.as_strided(shape, (*strides, head_dim, 1), offset)
    pages = pool.view(two * kv_heads * blocks, block_size * head_dim)
    buffer = workspace.take((source.pages.numel(), block_size * head_dim), like=pool)
    torch.index_select(pages, 0, source.pages, out=buffer)
    return buffer.view(shape)
