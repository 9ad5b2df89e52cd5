"""Copies of KV cache blocks, and the size of the cache."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.kv_cache import KvCache

_BLOCK = st.integers(0, 9)


def _cache() -> KvCache:
    """2 layers, 3 heads, 10 blocks of 2 tokens. All values differ."""
    cache = KvCache(2, 3, 10, 2, 4, torch.float32, torch.device("cpu"))
    for layer, pool in enumerate(cache.layers):
        pool.copy_(torch.arange(pool.numel()).view(pool.shape) + layer * pool.numel())
    return cache


@given(st.lists(st.tuples(_BLOCK, _BLOCK), max_size=20))
def test_copies_equal_those_of_a_plain_loop(pairs: list[tuple[int, int]]) -> None:
    """Pairs apply in order, even if they reuse earlier sources or destinations, or copy a block to itself."""
    cache, expected = _cache(), _cache()
    for source, destination in pairs:
        for pool in expected.layers:
            pool[:, :, destination] = pool[:, :, source].clone()
    cache.copy_blocks([block for pair in pairs for block in pair])
    for pool, other in zip(cache.layers, expected.layers, strict=True):
        assert torch.equal(pool, other)


def test_num_bytes_is_the_size_of_all_layers() -> None:
    assert _cache().num_bytes == 2 * 2 * 3 * 10 * 2 * 4 * 4
