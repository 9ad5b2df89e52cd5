"""Attention of one query a sequence over paged keys and values: softmax(rules(q K^T)) V, with softmax and sums in fp32.

Each program walks through its run of tiles (`decode_plan`), which may end one sequence and begin the next. Where it has
all tiles of a sequence it writes the output; otherwise a part of it, and a second kernel puts the parts together
(Flash-Decoding, Dao et al. 2023). All query heads of a kv head are the rows of one product, so keys are read once.
"""

from __future__ import annotations

import torch

from lmi_kernels import tuning
from lmi_kernels._triton import cdiv, jit, next_power_of_2, tl
from lmi_kernels.attention.combine_parts import combine_parts
from lmi_kernels.attention.decode_plan import DecodePlan, tuning_key
from lmi_kernels.attention.paged_sequences import PagedSequences, ScoreRules, soft_cap

_LOG2_E = 1.4426950408889634
_MOST_ROWS = 64
"""Query heads in one product; more of one kv head are dealt out over programs, which then read the same keys."""


def decode_attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    sequences: PagedSequences,
    plan: DecodePlan,
    rules: ScoreRules,
    out: torch.Tensor,
) -> None:
    """Write `out`; rows of padding become 0.

    Args:
        q: [num_seqs, num_heads, head_dim], a row's heads side by side (it may be a slice of a wider matrix).
        pool: [2, num_kv_heads, num_blocks, block_size, head_dim], contiguous, keys first.
        plan: of these sequences, kv heads, head dim and window.
        out: as q.
    """
    num_seqs, num_heads, head_dim = q.shape
    _, num_kv_heads, _, block_size, _ = pool.shape
    share = num_heads // num_kv_heads
    block_m = min(_MOST_ROWS, max(16, next_power_of_2(share)))
    row_tiles = cdiv(share, block_m)
    # Program p's part of sequence i is in slot p + i: of the next part at least one of them is greater.
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
        # Everything is a power of 2 but what the cap sees.
        rules.scale if rules.softcap else rules.scale * _LOG2_E,
        rules.softcap or 0.0,
        num_heads,
        HEAD_DIM=head_dim,
        DIM=next_power_of_2(head_dim),
        SHARE=share,
        BLOCK_SIZE=block_size,
        ROW_TILES=row_tiles,
        BLOCK_M=block_m,
        BLOCK_N=plan.block_n,
        # With a window tiles begin anywhere.
        ONE_BLOCK=rules.window is None and block_size % plan.block_n == 0,
        WHOLE_BLOCKS=rules.window is None and plan.block_n % block_size == 0,
        WINDOW=rules.window or 0,
        CAPS=rules.softcap is not None,
        ALIBI=rules.alibi_slopes is not None,
        **_launch_parameters(q, block_m),
    )
    combine_parts(plan, parts, maxima, sums, out)


def _launch_parameters(q: torch.Tensor, block_m: int) -> tuning.Parameters:
    """Warps, and tiles on their way from memory at once."""
    key = tuning_key(q.shape[-1])
    found = tuning.parameters("decode_attention", key if block_m <= 32 else f"{key}, many heads", q.device)
    # fp32, which is for tests, takes twice the shared memory.
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
    cap,
    num_heads,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROW_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    WHOLE_BLOCKS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPS: tl.constexpr,
    ALIBI: tl.constexpr,
):
    """One run of tiles, for the query heads of one kv head."""
    program = tl.program_id(0)
    kv_head = tl.program_id(1) // ROW_TILES
    per_program = tl.load(tiles_per_program_ptr)
    first_seq = tl.load(program_starts_ptr + program)
    last_seq = tl.load(program_starts_ptr + program + 1)

    row = (tl.program_id(1) % ROW_TILES) * BLOCK_M + tl.arange(0, BLOCK_M)
    head = kv_head * SHARE + row
    dim = tl.arange(0, DIM)
    key = tl.arange(0, BLOCK_N)
    of_rows = (row < SHARE)[:, None] & (dim < HEAD_DIM)[None, :]
    row_offsets = head[:, None] * HEAD_DIM + dim[None, :]
    keys_ptr = pool_ptr + kv_head.to(tl.int64) * head_stride
    values_ptr = keys_ptr + values_offset
    if ALIBI:
        slopes = tl.load(slopes_ptr + head, mask=row < SHARE, other=0.0) * 1.4426950408889634

    for seq in range(first_seq, last_seq + 1):
        seq_begin = tl.load(tile_starts_ptr + seq)
        seq_end = tl.load(tile_starts_ptr + seq + 1)
        begin = tl.maximum(seq_begin, program * per_program)
        end = tl.minimum(seq_end, (program + 1) * per_program)
        # Padding has no tiles, and the last sequence may begin where this program ends.
        if begin < end:
            seq_len = tl.load(seq_lens_ptr + seq)
            table_ptr = block_tables_ptr + tl.load(table_rows_ptr + seq).to(tl.int64) * table_stride
            q = tl.load(q_ptr + seq * q_stride + row_offsets, mask=of_rows, other=0.0)
            # Tiles are counted from the first key that the query sees.
            first_key = 0
            if WINDOW > 0:
                first_key = tl.maximum(seq_len - WINDOW, 0)
            start = first_key + (begin - seq_begin) * BLOCK_N
            stop = start + (end - begin) * BLOCK_N

            row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
            row_sum = tl.full([BLOCK_M], 0.0, tl.float32)
            acc = tl.full([BLOCK_M, DIM], 0.0, tl.float32)
            position = start if ONE_BLOCK else start + key
            block = tl.load(table_ptr + position // BLOCK_SIZE, mask=position < seq_len, other=0)
            for tile in range(start, stop, BLOCK_N):
                seen = tile + key < seq_len
                loaded = seen[:, None] & (dim < HEAD_DIM)[None, :]
                offsets = _offsets(block, tile, key, dim, HEAD_DIM, BLOCK_SIZE, ONE_BLOCK, WHOLE_BLOCKS)
                k = tl.load(keys_ptr + offsets, mask=loaded, other=0.0)
                # What nobody has written may be NaN, and 0 * NaN is no 0: values are masked as well.
                v = tl.load(values_ptr + offsets, mask=loaded, other=0.0)
                # A tile ahead, so that the next loads need not wait for their addresses.
                position = tile + BLOCK_N if ONE_BLOCK else tile + BLOCK_N + key
                block = tl.load(table_ptr + position // BLOCK_SIZE, mask=position < seq_len, other=0)

                scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
                if CAPS:
                    scores = soft_cap(scores, cap) * 1.4426950408889634
                if ALIBI:
                    scores += slopes[:, None] * (tile + key - (seq_len - 1))[None, :].to(tl.float32)
                scores = tl.where(seen[None, :], scores, float("-inf"))
                # Each tile has a key that is seen, so the maximum is a number.
                new_max = tl.maximum(row_max, tl.max(scores, 1))
                rescale = tl.exp2(row_max - new_max)
                p = tl.exp2(scores - new_max[:, None])
                row_sum = row_sum * rescale + tl.sum(p, 1)
                row_max = new_max
                # Rounded as values are, so that tensor cores take them; at most 1, summed in fp32.
                acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")

            if (begin == seq_begin) & (end == seq_end):
                whole = (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty)
                tl.store(out_ptr + seq * out_stride + row_offsets, whole, mask=of_rows)
            else:
                slot = (program + seq).to(tl.int64) * num_heads
                tl.store(parts_ptr + slot * HEAD_DIM + row_offsets, acc, mask=of_rows)
                tl.store(maxima_ptr + slot + head, row_max, mask=row < SHARE)
                tl.store(sums_ptr + slot + head, row_sum, mask=row < SHARE)


@jit
def _offsets(
    block,
    tile,
    key,
    dim,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    WHOLE_BLOCKS: tl.constexpr,
):
    """[BLOCK_N, DIM]: where a tile's keys are, from its kv head's first block. A pool has more than 2^31 elements."""
    first = block.to(tl.int64) * (BLOCK_SIZE * HEAD_DIM)
    if ONE_BLOCK:
        offsets = first + (tile % BLOCK_SIZE) * HEAD_DIM + (key[:, None] * HEAD_DIM + dim[None, :])
    elif WHOLE_BLOCKS:
        # Within a block the same for each tile: computed once.
        offsets = first[:, None] + ((key % BLOCK_SIZE)[:, None] * HEAD_DIM + dim[None, :])
    else:
        offsets = first[:, None] + (((tile + key) % BLOCK_SIZE)[:, None] * HEAD_DIM + dim[None, :])
    return offsets
