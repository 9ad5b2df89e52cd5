"""Write the keys and values of a step's tokens to their slots in the KV cache."""

from __future__ import annotations

import torch


def store_kv(kv: torch.Tensor, pool: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Set pool[:, :, slot_mapping[i]] = kv[i] for each token i.

    Args:
        kv: [num_tokens, 2, num_kv_heads, head_dim], keys before values; any float dtype.
        pool: [2, num_kv_heads, num_blocks, block_size, head_dim], written in place.
        slot_mapping: [num_tokens], int64: block * block_size + offset in the block.
    """
    two, heads, blocks, block_size, head_dim = pool.shape
    num_tokens = kv.shape[0]
    slots = pool.view(two * heads, blocks * block_size, head_dim)
    source = kv.reshape(num_tokens, two * heads, head_dim).transpose(0, 1)
    slots[:, slot_mapping] = source.to(pool.dtype)
