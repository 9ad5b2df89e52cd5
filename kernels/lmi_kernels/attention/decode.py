"""Decode attention: one query per sequence over paged keys and values. Computes softmax(rules(q K^T)) V, with softmax
and sums in fp32.

Each program computes its run of tiles (see `decode_plan`), which may end one sequence and begin the next. A program
with all tiles of a sequence writes the output. Otherwise it writes a partial result, and a second kernel combines the
partial results (Flash-Decoding, Dao et al. 2023). All query heads of a KV head are rows of one matrix product, so keys
are read once.
"""

from __future__ import annotations

import torch

from lmi_kernels import tuning
from lmi_kernels._triton import cdiv, jit, next_power_of_2, tl
from lmi_kernels.attention.combine_parts import combine_parts
from lmi_kernels.attention.decode_plan import DecodePlan, tuning_key
from lmi_kernels.attention.paged_sequences import PagedSequences, ScoreRules
from lmi_kernels.attention.tiles import attend, padded_head_dim, sink_sums

_MAX_QUERY_HEADS = 64
"""Maximum query heads in a matrix product. If a KV head has more, several programs read the same keys."""


def decode_attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    sequences: PagedSequences,
    plan: DecodePlan,
    rules: ScoreRules,
    out: torch.Tensor,
) -> None:
    """Compute attention into `out`. Padding rows become 0.

    Args:
        q: [num_seqs, num_heads, head_dim]. Each row is contiguous, but q may be a slice of a wider matrix.
        pool: [2, num_kv_heads, num_blocks, block_size, head_dim], contiguous, keys first.
        plan: made for these sequences, KV heads, head dim and window.
        out: same shape and layout as q.
    """
    num_seqs, num_heads, head_dim = q.shape
    _, num_kv_heads, _, block_size, _ = pool.shape
    share = num_heads // num_kv_heads
    block_m = min(_MAX_QUERY_HEADS, max(16, next_power_of_2(share)))
    row_tiles = cdiv(share, block_m)
    # Program p's result for sequence i is in slot p + i. The slot is unique, because from one result to the next either
    # p or i grows by one.
    slots = plan.num_programs + num_seqs
    parts = torch.empty(slots, num_heads, head_dim, dtype=torch.float32, device=q.device)
    maxima = torch.empty(slots, num_heads, dtype=torch.float32, device=q.device)
    sums = torch.empty_like(maxima)
    _tiles_kernel[(plan.num_programs, num_kv_heads * row_tiles)](
        q,
        pool,
        sequences.block_tables,
        sequences.table_rows,
        sequences.seq_lens,
        rules.alibi_slopes,
        rules.sinks,
        plan.tile_starts,
        plan.program_starts,
        plan.tiles_per_program,
        out,
        parts,
        maxima,
        sums,
        q.stride(0),
        out.stride(0),
        sequences.block_tables.stride(0),
        pool.stride(0),
        pool.stride(1),
        rules.scale,
        num_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=padded_head_dim(head_dim),
        SHARE=share,
        BLOCK_SIZE=block_size,
        ROW_TILES=row_tiles,
        BLOCK_M=block_m,
        BLOCK_N=plan.block_n,
        WINDOW=rules.window or 0,
        SOFTCAP=rules.softcap or 0.0,
        HAS_ALIBI=rules.alibi_slopes is not None,
        HAS_SINKS=rules.sinks is not None,
        **_launch_parameters(q, block_m),
    )
    combine_parts(plan, parts, maxima, sums, out)


def _launch_parameters(q: torch.Tensor, block_m: int) -> tuning.Parameters:
    """Return the number of warps and of pipeline stages."""
    key = tuning_key(q.shape[-1])
    found = tuning.parameters("decode_attention", key if block_m <= 32 else f"{key}, many heads", q.device)
    # fp32 takes twice the shared memory. Only tests use it.
    stages = found["num_stages"] if q.element_size() == 2 else 1
    return {"num_warps": found["num_warps"], "num_stages": stages}


@jit
def _tiles_kernel(
    q_ptr,
    pool_ptr,
    block_tables_ptr,
    table_rows_ptr,
    seq_lens_ptr,
    slopes_ptr,
    sinks_ptr,
    tile_starts_ptr,
    program_starts_ptr,
    tiles_per_program_ptr,
    out_ptr,
    parts_ptr,
    maxima_ptr,
    sums_ptr,
    q_stride,
    out_stride,
    table_stride,
    values_offset,
    head_stride,
    scale,
    num_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROW_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Compute one run of tiles for the query heads of one KV head."""
    program = tl.program_id(0)
    kv_head = tl.program_id(1) // ROW_TILES
    per_program = tl.load(tiles_per_program_ptr)
    first_seq = tl.load(program_starts_ptr + program)
    last_seq = tl.load(program_starts_ptr + program + 1)

    row = (tl.program_id(1) % ROW_TILES) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = kv_head * SHARE + row
    dim = tl.arange(0, BLOCK_D)
    of_rows = (row < SHARE)[:, None] & (dim < HEAD_DIM)[None, :]
    row_offsets = head[:, None] * HEAD_DIM + dim[None, :]
    keys_ptr = pool_ptr + kv_head.to(tl.int64) * head_stride
    values_ptr = keys_ptr + values_offset
    slopes = tl.load(slopes_ptr + head, mask=row < SHARE, other=0.0) if HAS_ALIBI else 0.0

    for seq in range(first_seq, last_seq + 1):
        seq_begin = tl.load(tile_starts_ptr + seq)
        seq_end = tl.load(tile_starts_ptr + seq + 1)
        begin = tl.maximum(seq_begin, program * per_program)
        end = tl.minimum(seq_end, (program + 1) * per_program)
        # Padding has no tiles, and the last sequence may begin right after this program's tiles.
        if begin < end:
            seq_len = tl.load(seq_lens_ptr + seq)
            table_ptr = block_tables_ptr + tl.load(table_rows_ptr + seq).to(tl.int64) * table_stride
            q = tl.load(q_ptr + seq * q_stride + row_offsets, mask=of_rows, other=0.0)
            first_key = tl.maximum(seq_len - WINDOW, 0) if WINDOW else 0
            # Tile 0 of a sequence is the first one with a visible key.
            start = (first_key // BLOCK_N + begin - seq_begin) * BLOCK_N
            stop = start + (end - begin) * BLOCK_N
            total = tl.zeros([BLOCK_M], tl.float32)
            peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
            weighted = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
            if HAS_SINKS:
                # Sinks count only once, in the sequence's first part.
                counts = (row < SHARE) & (begin == seq_begin)
                total, peak = sink_sums(tl.load(sinks_ptr + head, mask=counts, other=float("-inf")))
            position = tl.full([1], 0, tl.int32) + (seq_len - 1)
            # fmt: off
            total, peak, weighted = attend(
                total, peak, weighted, q, position, slopes, keys_ptr, values_ptr, table_ptr, start, stop,
                first_key, seq_len, scale, HEAD_DIM, BLOCK_SIZE, WINDOW, SOFTCAP, HAS_ALIBI, BLOCK_N, True,
            )
            # fmt: on
            if (begin == seq_begin) & (end == seq_end):
                whole = (weighted / total[:, None]).to(out_ptr.dtype.element_ty)
                tl.store(out_ptr + seq * out_stride + row_offsets, whole, mask=of_rows)
            else:
                slot = (program + seq).to(tl.int64) * num_heads
                tl.store(parts_ptr + slot * HEAD_DIM + row_offsets, weighted, mask=of_rows)
                tl.store(maxima_ptr + slot + head, peak, mask=row < SHARE)
                tl.store(sums_ptr + slot + head, total, mask=row < SHARE)
