"""The native KV cache begins at a cache line, whatever the memory that numpy gives."""

import pytest

from engines.native_kv_cache import NativeKvCache
from lmi_kernels.cpu import Storage


@pytest.mark.parametrize("storage", [Storage.FP32, Storage.BF16, Storage.INT8])
@pytest.mark.parametrize("num_blocks", [3, 5000])
def test_the_pages_of_all_layers_begin_at_a_cache_line(storage: Storage, num_blocks: int) -> None:
    cache = NativeKvCache(
        num_layers=3, num_kv_heads=3, num_blocks=num_blocks, block_size=16, head_dim=64, storage=storage
    )
    assert all(layer.data % 64 == 0 and layer.block_bytes % 64 == 0 for layer in cache.layers)
    assert cache.blocks.shape == (3, num_blocks, cache.num_bytes // 3 // num_blocks)
    assert not cache.blocks.any()
