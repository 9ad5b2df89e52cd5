"""The cache's blocks: copied as if one pair after the other, and zeroed."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.kv_cache import KvCache

_BLOCK = st.integers(0, 9)


def _cache() -> KvCache:
    """2 layers, 3 heads, 10 blocks of 2 tokens, every number another."""
    cache = KvCache(2, 3, 10, 2, 4, torch.float32, torch.device("cpu"))
    for layer, pool in enumerate(cache.layers):
        pool.copy_(torch.arange(pool.numel()).view(pool.shape) + layer * pool.numel())
    return cache


@given(st.lists(st.tuples(_BLOCK, _BLOCK), max_size=20))
def test_copies_are_those_of_a_plain_loop(pairs: list[tuple[int, int]]) -> None:
    """A destination that is a later source or destination, a source that is a later destination, a block to itself."""
    cache, expected = _cache(), _cache()
    for source, destination in pairs:
        for pool in expected.layers:
            pool[:, :, destination] = pool[:, :, source].clone()
    cache.copy_blocks([block for pair in pairs for block in pair])
    for pool, other in zip(cache.layers, expected.layers, strict=True):
        assert torch.equal(pool, other)


def test_it_says_how_large_it_is() -> None:
    assert _cache().num_bytes == 2 * 2 * 3 * 10 * 2 * 4 * 4
