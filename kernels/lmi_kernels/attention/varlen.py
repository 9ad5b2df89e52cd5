"""Causal attention of a flattened batch over the paged KV cache, with any number of query tokens per sequence.

o = softmax(rules(q k^T)) v for each query, over the keys of its sequence up to its own position. Grouped queries
(Ainslie et al. 2023, arXiv:2305.13245) are packed, see `tiles`. Key tiles that all rows of a block see, that is all
except those on the diagonal and at the window's edge, are computed in a loop without masks.
"""

from __future__ import annotations

import torch

from lmi_kernels import tuning
from lmi_kernels._triton import cdiv, jit, tl
from lmi_kernels.attention.paged_sequences import PagedSequences, ScoreRules
from lmi_kernels.attention.tiles import attend, padded_head_dim, sink_sums

_FEW_ROWS = 16
"""Sequences with at most this many packed rows use the smallest tile. A larger tile would be mostly empty."""


def varlen_attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    sequences: PagedSequences,
    cu_seqlens_q: torch.Tensor,
    max_query_len: int,
    rules: ScoreRules,
    out: torch.Tensor,
) -> None:
    """Compute attention into `out`.

    Args:
        q: [num_tokens, num_heads, head_dim], fp32, fp16 or bf16; each token's heads are contiguous.
        pool: [2, num_kv_heads, num_blocks, block_size, head_dim] in q's dtype, contiguous, keys first. It already holds
            this step's keys and values.
        cu_seqlens_q: [num_seqs + 1], int32, on the device: the queries of sequence i, its last tokens, are the rows
            [cu_seqlens_q[i], cu_seqlens_q[i + 1]) of q.
        max_query_len: maximum queries of a sequence. It determines the grid and the tiles.
        rules: the scale must be positive.
        out: same shape and layout as q, written in place. Rows without a sequence are not changed.
    """
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, num_blocks, block_size, _ = pool.shape
    share, num_seqs = num_heads // num_kv_heads, sequences.seq_lens.shape[0]
    tiles = tuning.parameters("varlen_attention", tile_key(q, max_query_len * share), q.device)
    block_m = tiles["block_m"]
    # Each sequence gets as many blocks as the longest one, unless fewer programs suffice if each searches its sequence.
    blocks_per_seq = cdiv(max_query_len * share, block_m)
    searched_blocks = num_tokens * share // block_m + num_seqs
    searches = num_seqs * blocks_per_seq > searched_blocks
    num_programs = (searched_blocks if searches else num_seqs * blocks_per_seq) * num_kv_heads
    if num_programs == 0:
        return
    _packed_attention_kernel[(num_programs,)](
        q,
        pool,
        out,
        sequences.block_tables,
        sequences.table_rows,
        sequences.seq_lens,
        cu_seqlens_q,
        rules.alibi_slopes,
        rules.sinks,
        rules.scale,
        num_seqs,
        blocks_per_seq,
        num_blocks,
        sequences.block_tables.stride(0),
        q.stride(0),
        out.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        SHARE=share,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        WINDOW=rules.window or 0,
        SOFTCAP=rules.softcap or 0.0,
        HAS_ALIBI=rules.alibi_slopes is not None,
        HAS_SINKS=rules.sinks is not None,
        SEARCHES=searches,
        BLOCK_M=block_m,
        BLOCK_N=tiles["block_n"],
        EDGE_N=tiles["edge_n"],
        BLOCK_D=padded_head_dim(head_dim),
        num_warps=tiles["num_warps"],
        num_stages=tiles["num_stages"],
    )


def tile_key(q: torch.Tensor, max_rows: int) -> str:
    """Return the key of the launch parameters. max_rows: packed rows of the longest sequence."""
    if q.dtype == torch.float32:
        return "fp32"
    return f"{'rows_16_' if max_rows <= _FEW_ROWS else ''}head_dim_{padded_head_dim(q.shape[2])}"


# Avoid recompilation: these numbers and the alignment of these arrays change from step to step.
@jit(
    do_not_specialize=("num_seqs", "blocks_per_seq", "num_blocks"),
    do_not_specialize_on_alignment=("table_rows_ptr", "seq_lens_ptr", "cu_seqlens_ptr"),
)
def _packed_attention_kernel(
    q_ptr,
    pool_ptr,
    out_ptr,
    block_tables_ptr,
    table_rows_ptr,
    seq_lens_ptr,
    cu_seqlens_ptr,
    slopes_ptr,
    sinks_ptr,
    scale,
    num_seqs,
    blocks_per_seq,
    num_blocks,
    table_stride,
    q_stride,
    out_stride,
    NUM_KV_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SEARCHES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EDGE_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """o = sum over keys of exp(s - max s) v / sum of exp(s - max s), for one block of packed rows; sums in fp32."""
    # Blocks run from last to first. The last ones have the most keys, and short work at the end balances the load.
    index = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = index % NUM_KV_HEADS
    seq, block = _sequence_and_block(
        index // NUM_KV_HEADS, cu_seqlens_ptr, num_seqs, blocks_per_seq, SHARE, BLOCK_M, SEARCHES
    )
    first_query = tl.load(cu_seqlens_ptr + seq)
    query_len = tl.load(cu_seqlens_ptr + seq + 1) - first_query
    if block * BLOCK_M >= query_len * SHARE:
        return
    packed = block * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = packed < query_len * SHARE
    # Rows beyond the last query repeat the last query, and are not stored.
    tokens = tl.minimum(packed // SHARE, query_len - 1)
    heads = kv_head * SHARE + packed % SHARE
    columns = tl.arange(0, BLOCK_D)
    is_element = is_row[:, None] & (columns < HEAD_DIM)[None, :]
    query_rows = (first_query + tokens).to(tl.int64)
    q_at = (query_rows * q_stride + heads * HEAD_DIM)[:, None] + columns[None, :]
    q = tl.load(q_ptr + q_at, mask=is_element, other=0.0)
    slopes = tl.load(slopes_ptr + heads) if HAS_ALIBI else 0.0

    past = tl.load(seq_lens_ptr + seq) - query_len
    # Positions of the block's first and last query.
    low = past + (block * BLOCK_M) // SHARE
    high = past + tl.minimum((block * BLOCK_M + BLOCK_M - 1) // SHARE, query_len - 1)
    first_key = tl.maximum(0, low - WINDOW + 1) if WINDOW else 0
    # All rows see all keys in [open_, closed). The window's edge is before this range, the diagonal after it.
    begin = first_key // EDGE_N * EDGE_N
    closed = (low + 1) // BLOCK_N * BLOCK_N
    end = (high + EDGE_N) // EDGE_N * EDGE_N
    head_size = num_blocks.to(tl.int64) * (BLOCK_SIZE * HEAD_DIM)
    keys_ptr = pool_ptr + kv_head * head_size
    values_ptr = keys_ptr + NUM_KV_HEADS * head_size
    table_ptr = block_tables_ptr + tl.load(table_rows_ptr + seq).to(tl.int64) * table_stride
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weighted = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if HAS_SINKS:
        total, peak = sink_sums(tl.load(sinks_ptr + heads))
    # fmt: off
    open_ = 0
    if WINDOW:
        open_ = tl.maximum(high - WINDOW + BLOCK_N, 0) // BLOCK_N * BLOCK_N
        open_ = tl.minimum(open_, closed)
        total, peak, weighted = attend(
            total, peak, weighted, q, past + tokens, slopes, keys_ptr, values_ptr, table_ptr, begin, open_,
            first_key, high + 1, scale, HEAD_DIM, BLOCK_SIZE, WINDOW, SOFTCAP, HAS_ALIBI, EDGE_N, True,
        )
    total, peak, weighted = attend(
        total, peak, weighted, q, past + tokens, slopes, keys_ptr, values_ptr, table_ptr, open_, closed,
        first_key, high + 1, scale, HEAD_DIM, BLOCK_SIZE, WINDOW, SOFTCAP, HAS_ALIBI, BLOCK_N, False,
    )
    total, peak, weighted = attend(
        total, peak, weighted, q, past + tokens, slopes, keys_ptr, values_ptr, table_ptr, tl.maximum(begin, closed),
        end, first_key, high + 1, scale, HEAD_DIM, BLOCK_SIZE, WINDOW, SOFTCAP, HAS_ALIBI, EDGE_N, True,
    )
    # fmt: on
    out_at = (query_rows * out_stride + heads * HEAD_DIM)[:, None] + columns[None, :]
    tl.store(out_ptr + out_at, (weighted / total[:, None]).to(out_ptr.dtype.element_ty), mask=is_element)


@jit
def _sequence_and_block(
    index,
    cu_seqlens_ptr,
    num_seqs,
    blocks_per_seq,
    SHARE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SEARCHES: tl.constexpr,
):
    """Return the sequence of a block of packed rows, and the block's index in the sequence, which may be past its end.

    Without a search all sequences have as many blocks as the longest one. With a search, sequence i begins at block
    cu_seqlens[i] * SHARE // BLOCK_M + i, which leaves room for the partly filled last block of each sequence.
    """
    if SEARCHES:
        # Counting the sequences that begin up to `index` takes one load. A binary search takes several dependent ones.
        count = 0
        lanes = tl.arange(0, 512)
        for first in range(0, num_seqs, 512):
            seqs = first + lanes
            begin = tl.load(cu_seqlens_ptr + seqs, mask=seqs < num_seqs, other=0) * SHARE // BLOCK_M + seqs
            count += tl.sum(((seqs < num_seqs) & (begin <= index)).to(tl.int32))
        seq = count - 1
        block = index - (tl.load(cu_seqlens_ptr + seq) * SHARE // BLOCK_M + seq)
    else:
        # The last blocks of all sequences are adjacent, because they have the most keys.
        seq = index % num_seqs
        block = index // num_seqs
    return seq, block
