"""Reference for attention over paged keys and values."""

from __future__ import annotations

import torch

from lmi_kernels.attention.paged_sequences import ScoreRules


def attention_reference(
    q: torch.Tensor,
    pool: torch.Tensor,
    block_tables: torch.Tensor,
    table_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    rules: ScoreRules,
) -> torch.Tensor:
    """Compute attention in plain loops and fp64, one query at a time. Rows without a sequence are 0.

    Args:
        q: [num_tokens, num_heads, head_dim].
        pool: [2, num_kv_heads, num_blocks, block_size, head_dim], keys first.
        cu_seqlens_q: [num_seqs + 1], int32: the queries of sequence i, its last tokens, are the rows
            [cu_seqlens_q[i], cu_seqlens_q[i + 1]) of q.

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
            key_positions = torch.arange(first, position + 1)
            for head in range(q.shape[1]):
                scores = keys[head // share, key_positions] @ q[row, head].double() * rules.scale
                if rules.softcap is not None:
                    scores = rules.softcap * torch.tanh(scores / rules.softcap)
                if rules.alibi_slopes is not None:
                    scores = scores + rules.alibi_slopes[head].double() * (key_positions - position)
                if rules.sinks is not None:
                    scores = torch.cat((scores, rules.sinks[head : head + 1].double()))
                weights = torch.softmax(scores, dim=0)[: len(key_positions)]
                out[row, head] = weights @ values[head // share, key_positions]
    return out
