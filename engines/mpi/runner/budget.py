"""The arithmetic of a rank's memory. Plain Python: `lmi check` predicts with it what ranks measure."""

from __future__ import annotations

SPARE = 1.1
"""The largest step may take this much more than what was measured: memory is never filled without gaps."""


def gpu_cache_bytes(total: int, utilization: float, others: int, weights: int, activations: int) -> int:
    """Return what one GPU's KV cache may take: its share of the memory, less everything else. Negative when nothing is
    left.

    others: bytes on the device that are not tensors of this process.
    """
    return int(total * utilization) - others - weights - activations


def local_bytes(cache: int, num_kv_heads: int, ranks: int, kv_heads: int) -> int:
    """Return one rank's part of bytes of the cache over all ranks. Beyond as many ranks as KV heads each has one.

    kv_heads: of this rank.
    """
    return cache // max(num_kv_heads, ranks) * kv_heads
