"""Shared parts of the attention kernels: the rows of a program, and its loop over the keys.

A sequence's queries are packed by KV head: packed row r is query token r // SHARE of query head r % SHARE of that KV
head. A program computes BLOCK_M consecutive packed rows of one sequence and one KV head. So each key is loaded once for
all query heads that share it, and tiles are full even if their size is no multiple of the number of heads.

Keys are loaded in tiles of BLOCK_N, gathered page by page through the block table. A page's row is contiguous and a
multiple of 16 bytes, so the gather consists of 16-byte asynchronous copies to shared memory. The page numbers of the
next tile are loaded while the current one is computed, so no copy waits for its address.
"""

from __future__ import annotations

from lmi_kernels._triton import jit, next_power_of_2, tl


def padded_head_dim(head_dim: int) -> int:
    """Return the number of columns of a tile, at least the 16 that `tl.dot` needs."""
    return max(16, next_power_of_2(head_dim))


@jit
def sink_sums(sinks):
    """Return `total` and `peak` for `attend` after a key with these scores and no value. -inf: no key."""
    return tl.where(sinks > float("-inf"), 1.0, 0.0), sinks * 1.4426950408889634


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
    """Continue the online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867) over the keys [begin, end).

    Args:
        total, peak: [BLOCK_M], fp32: the sum of the exponentials so far, and the largest score times log2(e).
        weighted: [BLOCK_M, BLOCK_D], fp32: the sum of the values, weighted by the exponentials.
        q, positions, slopes: one for each row: [BLOCK_M, BLOCK_D], [BLOCK_M] or [1] (one for all rows), [BLOCK_M].
        keys_ptr, values_ptr: the first page of this KV head.
        begin, end: multiples of BLOCK_N.
        first_key, num_keys: all visible keys are in [first_key, num_keys). Other keys are not read.
        MASKED: whether some rows may not see all keys of a tile.

    Returns: total, peak, weighted.
    """
    block_d: tl.constexpr = q.shape[1]
    columns = tl.arange(0, block_d)
    slots = tl.arange(0, BLOCK_N)
    # The hardware only has exponentials to base 2.
    log2_e: tl.constexpr = 1.4426950408889634
    # Without soft cap and ALiBi the scale is folded into the factor of the exponential.
    plain: tl.constexpr = SOFTCAP == 0 and not HAS_ALIBI
    factor = scale * log2_e if plain else 1.0
    # Tiles without a mask are full, so one comparison shows whether there is a next tile.
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
        # Do not read keys that no row sees, because NaN times a weight of 0 is NaN.
        inside = (keys_at >= first_key) & (keys_at < num_keys)
        k = _load(keys_ptr, page_starts, in_page, inside, columns, HEAD_DIM, block_d, MASKED)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if not plain:
            scores *= scale
            if SOFTCAP != 0:
                scores = _soft_cap(scores, SOFTCAP)
            if HAS_ALIBI:
                scores += slopes[:, None] * (keys_at[None, :] - positions[:, None]).to(tl.float32)
            scores *= log2_e
        if MASKED:
            seen = keys_at[None, :] <= positions[:, None]
            if WINDOW:
                seen = seen & (keys_at[None, :] > positions[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
        # In rows without a visible key so far, -inf minus -inf would be NaN.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak) if MASKED else new_peak
        weights = tl.exp2(scores * factor - base[:, None])
        shrink = tl.exp2(peak - base)
        total = total * shrink + tl.sum(weights, 1)
        weighted = weighted * shrink[:, None]
        v = _load(values_ptr, page_starts, in_page, inside, columns, HEAD_DIM, block_d, MASKED)
        # Weights are at most 1, so rounding them to 16 bits loses no more than rounding the values did.
        weighted = tl.dot(weights.to(v.dtype), v, weighted, input_precision="ieee")
        peak = new_peak
    return total, peak, weighted


@jit
def _soft_cap(scores, cap):
    """Return cap * tanh(scores / cap), computed with exp because Triton has it for every target."""
    # tanh(x) = 1 - 2 / (exp(2x) + 1) is never NaN for large or small x.
    return cap * (1.0 - 2.0 / (tl.exp(2.0 * scores / cap) + 1.0))


@jit
def _pages(
    table_ptr, tile, slots, limit, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr
):
    """Load the page numbers of the keys [tile, tile + BLOCK_N) below `limit`: one for the tile, or one per key."""
    if BLOCK_SIZE % BLOCK_N == 0:
        entries = tile // BLOCK_SIZE
    elif BLOCK_N % BLOCK_SIZE == 0:
        # `tile // BLOCK_SIZE` is a scalar, so only the second term is computed per key.
        entries = tile // BLOCK_SIZE + slots // BLOCK_SIZE
    else:
        entries = (tile + slots) // BLOCK_SIZE
    wanted = tile + slots < limit if MASKED and BLOCK_SIZE % BLOCK_N != 0 else tile < limit
    return tl.load(table_ptr + entries, mask=wanted, other=0)


@jit
def _slots_in_page(tile, slots, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the index of each key in its page."""
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
    """Load a tile of keys or values. Rows that are not `inside`, and columns beyond HEAD_DIM, are 0.

    Args:
        page_starts: offset of one page, or of each key's page, [BLOCK_N, 1], int64.
        in_page: [BLOCK_N, BLOCK_D], int32: offsets within the page. They are separate so that 64-bit sums are computed
            once per row, not per load.
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
