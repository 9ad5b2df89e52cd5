"""Arithmetic of a rank's memory. Plain Python: `lmi check` uses it to predict what ranks measure."""

from __future__ import annotations

CONTEXT_BYTES = 1 << 29
"""Assumed size of the driver's context on a GPU, in addition to all tensors."""
ACTIVATION_HEADROOM = 1.1
"""Factor by which the largest step may exceed its measurement, because memory is never filled without gaps."""


def gpu_cache_bytes(total: int, utilization: float, others: int, weights: int, activations: int) -> int:
    """Return the bytes that one GPU's KV cache may take: its share of the memory, minus everything else. Negative when
    nothing is left.

    others: bytes of this process on the device that are not tensors.
    """
    return int(total * utilization) - others - weights - activations


def local_bytes(cache: int, num_kv_heads: int, ranks: int, kv_heads: int) -> int:
    """Return one rank's part of `cache` bytes over all ranks. With more ranks than KV heads, each rank has one KV head.

    kv_heads: KV heads of this rank.
    """
    return cache // max(num_kv_heads, ranks) * kv_heads
