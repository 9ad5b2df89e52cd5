from __future__ import annotations

import pytest
import torch

from lmi_kernels import store_kv
from tests.support.seeds import fresh_generator


@pytest.mark.parametrize("pool_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kv_heads", "num_blocks", "block_size", "head_dim"), [(1, 3, 1, 2), (3, 7, 4, 8)])
def test_writes_each_token_to_its_slot_and_nothing_else(
    kv_heads: int, num_blocks: int, block_size: int, head_dim: int, pool_dtype: torch.dtype
) -> None:
    generator = fresh_generator()
    pool = torch.randn(2, kv_heads, num_blocks, block_size, head_dim, generator=generator).to(pool_dtype)
    expected = pool.clone()
    slots = torch.randperm(num_blocks * block_size, generator=generator)[: num_blocks * block_size // 2 + 1]
    kv = torch.randn(len(slots), 2, kv_heads, head_dim, generator=generator)
    for token, slot in zip(kv, slots.tolist(), strict=True):
        expected[:, :, slot // block_size, slot % block_size] = token.to(pool_dtype)
    store_kv(kv, pool, slots)
    assert torch.equal(pool, expected)


def test_writes_one_layer_of_a_cache_from_part_of_a_fused_qkv() -> None:
    # The attention layer passes views: of one layer of the cache, and of keys and values in the fused qkv.
    generator = fresh_generator()
    cache = torch.zeros(3, 2, 2, 5, 4, 8)
    qkv = torch.randn(6, 3 + 2 + 2, 8, generator=generator)
    slots = torch.tensor([19, 3, 4, 0, 11, 12])
    store_kv(qkv[:, 3:].view(6, 2, 2, 8), cache[1], slots)
    flat = cache.view(3, 2, 2, 20, 8)
    assert torch.equal(flat[1, 0][:, slots], qkv[:, 3:5].transpose(0, 1))
    assert torch.equal(flat[1, 1][:, slots], qkv[:, 5:].transpose(0, 1))
    assert not cache[0].any()
    assert not cache[2].any()


def test_an_empty_batch_changes_nothing() -> None:
    pool = torch.ones(2, 1, 2, 2, 2)
    store_kv(torch.empty(0, 2, 1, 2), pool, torch.empty(0, dtype=torch.int64))
    assert bool((pool == 1).all())
