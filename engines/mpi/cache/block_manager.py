"""Sequences' blocks: two allocators over one layout and one attention."""

from __future__ import annotations

from engines.mpi.cache.base import BlockManager
from engines.mpi.cache.contiguous_blocks import ContiguousBlocks
from engines.mpi.cache.paged_blocks import PagedBlocks

__all__ = ["BlockManager", "make_block_manager"]


def make_block_manager(
    num_blocks: int, block_size: int, paged: bool, prefix_caching: bool = False
) -> BlockManager:
    """The allocator that `option.paged_attention` asks for; only the paged one has a prefix cache."""
    if paged:
        return PagedBlocks(num_blocks, block_size, prefix_caching)
    return ContiguousBlocks(num_blocks, block_size)
