"""What all attention kernels are told of sequences and scores, and what they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lmi_kernels._triton import jit, tl


@dataclass(frozen=True, slots=True)
class PagedSequences:
    """A step's sequences and where their keys are, all on the device."""

    block_tables: torch.Tensor
    """[num_table_rows, max_blocks], int32: of all running sequences; beyond a sequence's keys stands anything."""
    table_rows: torch.Tensor
    """[num_seqs], int32: each sequence's row of the block tables; anything where `seq_lens` is 0."""
    seq_lens: torch.Tensor
    """[num_seqs], int32: keys of each sequence, the step's own included; 0: padding, without any query."""


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """What becomes of a query's product with a key before the softmax."""

    scale: float
    window: int | None = None
    """A query sees the last so many keys, its own included."""
    softcap: float | None = None
    """cap * tanh(score / cap), after scaling (Gemma 2, arXiv:2408.00118)."""
    alibi_slopes: torch.Tensor | None = None
    """[num_heads], fp32, on the device: slope * (key's position - query's) is added (arXiv:2108.12409)."""


@jit
def soft_cap(scores, cap):
    """cap * tanh(scores / cap), by exp, which Triton has for every target."""
    # tanh(x) = 1 - 2 / (exp(2x) + 1), which neither overflows to NaN for large x nor for small.
    return cap * (1.0 - 2.0 / (tl.exp(2.0 * scores / cap) + 1.0))


def attention_reference(
    q: torch.Tensor,
    pool: torch.Tensor,
    block_tables: torch.Tensor,
    table_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    rules: ScoreRules,
) -> torch.Tensor:
    """In plain loops and fp64, one query at a time; rows of no sequence are 0.

    Args:
        q: [num_tokens, num_heads, head_dim].
        pool: [2, num_kv_heads, num_blocks, block_size, head_dim], keys first.
        cu_seqlens_q: [num_seqs + 1], int32: sequence i's queries, its last tokens, are q's rows
            [cu_seqlens_q[i], cu_seqlens_q[i + 1]).

    Returns: [num_tokens, num_heads, head_dim], fp64.
    """
    two, kv_heads, _, block_size, head_dim = pool.shape
    share = q.shape[1] // kv_heads
    out = torch.zeros(q.shape, dtype=torch.float64)
    bounds = cu_seqlens_q.tolist()
    for i, seq_len in enumerate(seq_lens.tolist()):
        if seq_len == 0:
            continue
        table = block_tables[int(table_rows[i]), : -(-seq_len // block_size)].long()
        keys, values = pool[:, :, table].reshape(two, kv_heads, -1, head_dim).double()
        for row in range(bounds[i], bounds[i + 1]):
            position = seq_len - (bounds[i + 1] - row)
            first = 0 if rules.window is None else max(0, position + 1 - rules.window)
            places = torch.arange(first, position + 1)
            for head in range(q.shape[1]):
                scores = keys[head // share, places] @ q[row, head].double() * rules.scale
                if rules.softcap is not None:
                    scores = rules.softcap * torch.tanh(scores / rules.softcap)
                if rules.alibi_slopes is not None:
                    scores = scores + rules.alibi_slopes[head].double() * (places - position)
                out[row, head] = torch.softmax(scores, dim=0) @ values[head // share, places]
    return out
