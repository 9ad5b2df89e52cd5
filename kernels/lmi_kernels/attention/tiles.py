"""What the attention kernels are made of: the rows of a program, and its walk over the keys.

A sequence's queries are packed by KV head: packed row r is its query token r // SHARE of query head r % SHARE of that
KV head. A program takes BLOCK_M consecutive packed rows of one sequence and one KV head, so that every key is loaded
once for all query heads that share it, and no row of a tile is lost to heads that do not divide it.

Keys come in tiles of BLOCK_N, gathered page by page through the block table. A page's row is contiguous and a whole
number of 16 bytes, so that the gather is made of 16-byte asynchronous copies into shared memory; the page numbers of
the next tile are loaded while this one is computed, so that no copy waits for its address.
"""

from __future__ import annotations

from lmi_kernels._triton import jit, next_power_of_2, tl
from lmi_kernels.attention.paged_sequences import soft_cap


def padded_head_dim(head_dim: int) -> int:
    """Columns of a tile; `tl.dot` takes at least 16."""
    return max(16, next_power_of_2(head_dim))


@jit
def sequence_and_block(
    index,
    cu_seqlens_ptr,
    num_seqs,
    blocks_per_seq,
    SHARE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SEARCHES: tl.constexpr,
):
    """The sequence of the index-th block of packed rows, and the block's number there, which may be beyond its rows.

    Without a search all sequences have as many blocks as the longest. With one, sequence i begins with block
    cu_seqlens[i] * SHARE // BLOCK_M + i, which leaves room for each sequence's last, partly filled block.
    """
    if SEARCHES:
        # Counting all beginnings up to `index` costs one load; halving would cost one after the other.
        count = 0
        lanes = tl.arange(0, 512)
        for first in range(0, num_seqs, 512):
            seqs = first + lanes
            begin = tl.load(cu_seqlens_ptr + seqs, mask=seqs < num_seqs, other=0) * SHARE // BLOCK_M + seqs
            count += tl.sum(((seqs < num_seqs) & (begin <= index)).to(tl.int32))
        seq = count - 1
        block = index - (tl.load(cu_seqlens_ptr + seq) * SHARE // BLOCK_M + seq)
    else:
        # Last blocks lie side by side: they have the most keys.
        seq = index % num_seqs
        block = index // num_seqs
    return seq, block


@jit
def attend(
    total,
    peak,
    weighted,
    q,
    positions,
    slopes,
    keys_ptr,
    values_ptr,
    table_ptr,
    begin,
    end,
    first_key,
    num_keys,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867) of rows over the tiles of keys [begin, end).

    Args:
        total, peak: [BLOCK_M], fp32: sum of the exponentials so far, and the largest score, times log2(e).
        weighted: [BLOCK_M, BLOCK_D], fp32: sum of the values, weighted by the exponentials.
        q, positions, slopes: of the rows: [BLOCK_M, BLOCK_D], [BLOCK_M] or [1] (all rows have one), [BLOCK_M].
        keys_ptr, values_ptr: the first page of this KV head.
        begin, end: multiples of BLOCK_N.
        first_key, num_keys: what any row sees lies in [first_key, num_keys); nothing else is read.
        MASKED: some row may not see all of a tile.

    Returns: total, peak, weighted.
    """
    block_d: tl.constexpr = q.shape[1]
    columns = tl.arange(0, block_d)
    slots = tl.arange(0, BLOCK_N)
    # Exponentials are of base 2, the only ones that the hardware has.
    log2_e: tl.constexpr = 1.4426950408889634
    # Scores that nothing else is done to are scaled by the multiplication which their exponential takes anyway.
    plain: tl.constexpr = SOFTCAP == 0 and not HAS_ALIBI
    factor = scale * log2_e if plain else 1.0
    # Tiles that need no mask are whole: whether there is a next one is one comparison for all of its pages.
    limit = num_keys if MASKED else end
    pages = _pages(table_ptr, begin, slots, limit, BLOCK_SIZE, BLOCK_N, MASKED)
    for tile in range(begin, end, BLOCK_N):
        tile = tl.multiple_of(tile, BLOCK_N)
        keys_at = tile + slots
        page_starts = pages.to(tl.int64) * (BLOCK_SIZE * HEAD_DIM)
        if BLOCK_SIZE % BLOCK_N != 0:
            page_starts = page_starts[:, None]
        in_page = _slots_in_page(tile, slots, BLOCK_SIZE, BLOCK_N)[:, None] * HEAD_DIM + columns[None, :]
        pages = _pages(table_ptr, tile + BLOCK_N, slots, limit, BLOCK_SIZE, BLOCK_N, MASKED)
        # What no row sees is not read: NaN there would come through a weight of 0.
        inside = (keys_at >= first_key) & (keys_at < num_keys)
        k = _load(keys_ptr, page_starts, in_page, inside, columns, HEAD_DIM, block_d, MASKED)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if not plain:
            scores *= scale
            if SOFTCAP != 0:
                scores = soft_cap(scores, SOFTCAP)
            if HAS_ALIBI:
                scores += slopes[:, None] * (keys_at[None, :] - positions[:, None]).to(tl.float32)
            scores *= log2_e
        if MASKED:
            seen = keys_at[None, :] <= positions[:, None]
            if WINDOW:
                seen = seen & (keys_at[None, :] > positions[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
        # A row that has seen no key yet: -inf minus -inf is NaN.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak) if MASKED else new_peak
        weights = tl.exp2(scores * factor - base[:, None])
        shrink = tl.exp2(peak - base)
        total = total * shrink + tl.sum(weights, 1)
        weighted = weighted * shrink[:, None]
        v = _load(values_ptr, page_starts, in_page, inside, columns, HEAD_DIM, block_d, MASKED)
        # Weights are at most 1: 16 bits lose no more than they do in the values.
        weighted = tl.dot(weights.to(v.dtype), v, weighted, input_precision="ieee")
        peak = new_peak
    return total, peak, weighted


@jit
def _pages(
    table_ptr, tile, slots, limit, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr
):
    """Page numbers of the keys [tile, tile + BLOCK_N): one, or one a key; none of pages from `limit` on."""
    if BLOCK_SIZE % BLOCK_N == 0:
        entries = tile // BLOCK_SIZE
    elif BLOCK_N % BLOCK_SIZE == 0:
        # Written so that the tile's part is one number.
        entries = tile // BLOCK_SIZE + slots // BLOCK_SIZE
    else:
        entries = (tile + slots) // BLOCK_SIZE
    wanted = tile + slots < limit if MASKED and BLOCK_SIZE % BLOCK_N != 0 else tile < limit
    return tl.load(table_ptr + entries, mask=wanted, other=0)


@jit
def _slots_in_page(tile, slots, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Where each key of a tile lies in its page."""
    if BLOCK_N % BLOCK_SIZE == 0:
        places = slots % BLOCK_SIZE
    elif BLOCK_SIZE % BLOCK_N == 0:
        places = tile % BLOCK_SIZE + slots
    else:
        places = (tile + slots) % BLOCK_SIZE
    return places


@jit
def _load(
    pages_ptr,
    page_starts,
    in_page,
    inside,
    columns,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr,
):
    """A tile of keys or values, 0 where rows are not `inside` and beyond the head's dimension.

    Args:
        page_starts: of one page, or [BLOCK_N, 1], int64.
        in_page: [BLOCK_N, BLOCK_D], int32: 64-bit sums are made once a row, not once a load.
    """
    pointers = pages_ptr + page_starts + in_page
    if HEAD_DIM != BLOCK_D:
        mask = (columns < HEAD_DIM)[None, :]
        if MASKED:
            mask = inside[:, None] & mask
        tile = tl.load(pointers, mask=mask, other=0.0)
    elif MASKED:
        tile = tl.load(pointers, mask=inside[:, None], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile
