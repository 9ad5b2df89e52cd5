"""One launch for everything between the qkv projection and attention: RMSNorm of heads (Qwen3), rotary position
embedding (Su et al. 2021, arXiv:2104.09864), and the cache write. For GPUs; on a CPU use `rms_norm`, `rotary_` and
`store_kv`.

y[i] = x[i] * cos[i] - x[i + r/2] * sin[i],  y[i + r/2] = x[i + r/2] * cos[i] + x[i] * sin[i],  for i < r/2, in fp32.
r is the number of rotated features.
"""

from __future__ import annotations

import torch

from lmi_kernels._triton import cdiv, jit, next_power_of_2, tl, uses_triton

_NUM_WARPS = 2
"""Warps per program. A multiprocessor holds at most 32 programs and 64 warps."""


def rope_and_store(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor | None,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    pool: torch.Tensor,
    num_heads: int,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Normalize (if `norms` is given) and rotate queries and keys, and write keys and values to the cache.

    Args:
        qkv: [num_rows, (num_heads + 2 * num_kv_heads) * head_dim], contiguous: query, key, value heads.
        cos_sin: [max_positions, rotary_dim], fp32: cosines in the first half of a row, sines in the second. A head's
            first rotary_dim features are rotated, the others stay unchanged. None: no rotation.
        positions: [num_rows], int64, each below max_positions.
        slot_mapping: [num_rows], int64: block * block_size + offset in the block; -1: padding, which is not
            stored.
        pool: [2, num_kv_heads, num_blocks, block_size, head_dim], contiguous, keys first; written in place.
        num_heads: number of query heads.
        norms: RMSNorm weights of the query heads and of the key heads, [head_dim] each, in qkv's dtype or fp32.
        eps: epsilon of these norms.

    Returns: the queries, [num_rows, num_heads, head_dim], in qkv's dtype. Padding rows are computed like others.

    Raises:
        RuntimeError: the tensors are on a CPU without Triton's interpreter.
    """
    if not uses_triton(qkv):
        raise RuntimeError(
            f"rope_and_store runs on a GPU, not on {qkv.device}; on a CPU use rotary_ and store_kv"
        )
    q_norm, k_norm = norms if norms is not None else (None, None)
    two, num_kv_heads, num_blocks, block_size, head_dim = pool.shape
    num_rows = qkv.shape[0]
    q = qkv.new_empty(num_rows, num_heads, head_dim)
    rotary_dim = 0 if cos_sin is None else cos_sin.shape[1]
    block_half = next_power_of_2(head_dim // 2)
    # Each thread loads 16 bytes of each half. A program has at most as many heads as there are.
    all_heads = num_heads + two * num_kv_heads
    block_heads = min(max(1, _NUM_WARPS * 256 // block_half), next_power_of_2(all_heads))
    _rope_and_store_kernel[(num_rows, cdiv(all_heads, block_heads))](
        qkv,
        cos_sin,
        positions,
        slot_mapping,
        pool,
        q_norm,
        k_norm,
        q,
        num_blocks * block_size,
        eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_HALF=block_half,
        BLOCK_HEADS=block_heads,
        ROTARY_DIM=rotary_dim,
        NORMS=norms is not None,
        num_warps=_NUM_WARPS,
    )
    return q


# Not specialized, because the cache has another size while memory is profiled.
@jit(do_not_specialize=("num_slots",))
def _rope_and_store_kernel(
    qkv_ptr,
    cos_sin_ptr,
    positions_ptr,
    slot_mapping_ptr,
    pool_ptr,
    q_norm_ptr,
    k_norm_ptr,
    q_ptr,
    num_slots,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    NORMS: tl.constexpr,
):
    """Compute BLOCK_HEADS heads of one row, as first and second features of pairs: [BLOCK_HEADS, HEAD_DIM / 2] each.

    The features that are not rotated also form pairs, from their first and their second half.
    """
    half: tl.constexpr = HEAD_DIM // 2
    turned: tl.constexpr = ROTARY_DIM // 2
    all_heads: tl.constexpr = NUM_HEADS + 2 * NUM_KV_HEADS
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + row)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    # Broadcast to the full shape: each thread then reads angles and weights of its own columns, without shared memory.
    columns = tl.broadcast_to(tl.arange(0, BLOCK_HALF)[None, :], (BLOCK_HEADS, BLOCK_HALF))
    in_half = columns < half
    firsts, seconds = columns, columns + half
    if turned and turned < half:
        firsts = tl.where(columns < turned, columns, columns + turned)
        seconds = tl.where(columns < turned, columns + turned, columns + half)
    inside = (heads < all_heads) & in_half
    is_query = heads < NUM_HEADS
    is_value = heads >= NUM_HEADS + NUM_KV_HEADS
    source = qkv_ptr + (row * all_heads + heads) * HEAD_DIM
    low = tl.load(source + firsts, mask=inside, other=0.0)
    high = tl.load(source + seconds, mask=inside, other=0.0)
    if NORMS:
        low32, high32 = low.to(tl.float32), high.to(tl.float32)
        mean = tl.sum(low32 * low32 + high32 * high32, axis=1, keep_dims=True) / HEAD_DIM
        scale = tl.rsqrt(mean + eps)
        q_low = tl.load(q_norm_ptr + firsts, mask=in_half, other=0.0)
        q_high = tl.load(q_norm_ptr + seconds, mask=in_half, other=0.0)
        k_low = tl.load(k_norm_ptr + firsts, mask=in_half, other=0.0)
        k_high = tl.load(k_norm_ptr + seconds, mask=in_half, other=0.0)
        # Rounded to the dtype of the weights before the product with them, like `rms_norm`.
        normed_low = (low32 * scale).to(q_low.dtype) * tl.where(is_query, q_low, k_low)
        normed_high = (high32 * scale).to(q_low.dtype) * tl.where(is_query, q_high, k_high)
        low = tl.where(is_value, low, normed_low.to(low.dtype))
        high = tl.where(is_value, high, normed_high.to(high.dtype))
    if turned:
        angle = cos_sin_ptr + tl.load(positions_ptr + row) * ROTARY_DIM + columns
        cos = tl.load(angle, mask=columns < turned, other=1.0)
        sin = tl.load(angle + turned, mask=columns < turned, other=0.0)
        low32, high32 = low.to(tl.float32), high.to(tl.float32)
        low = tl.where(is_value, low32, low32 * cos - high32 * sin)
        high = tl.where(is_value, high32, high32 * cos + low32 * sin)

    target = q_ptr + (row * NUM_HEADS + heads) * HEAD_DIM
    queries = inside & is_query
    tl.store(target + firsts, low.to(q_ptr.dtype.element_ty), mask=queries)
    tl.store(target + seconds, high.to(q_ptr.dtype.element_ty), mask=queries)
    # The pool's planes are in the order of the heads: keys, then values.
    plane = (heads - NUM_HEADS).to(tl.int64)
    target = pool_ptr + (plane * num_slots + slot) * HEAD_DIM
    stored = inside & (heads >= NUM_HEADS) & (slot >= 0)
    tl.store(target + firsts, low.to(pool_ptr.dtype.element_ty), mask=stored)
    tl.store(target + seconds, high.to(pool_ptr.dtype.element_ty), mask=stored)
