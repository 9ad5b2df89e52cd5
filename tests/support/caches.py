"""Access of tests to KV caches of both kinds."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engines.kv_cache import KvCache
from engines.native_kv_cache import NativeKvCache


def fill_with_nan(cache: KvCache | NativeKvCache, blocks: Sequence[int]) -> None:
    if isinstance(cache, NativeKvCache):
        # All bits set is NaN in every dtype.
        cache.blocks[:, list(blocks)] = 0xFF
        return
    for pool in cache.layers:
        pool[:, :, list(blocks)] = torch.nan


def num_kv_heads(cache: KvCache | NativeKvCache) -> int:
    if isinstance(cache, NativeKvCache):
        return cache.layers[0].num_kv_heads
    return cache.layers[0].shape[1]
