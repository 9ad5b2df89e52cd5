"""Selection of the block allocator. Both allocators use the same layout and the same attention."""

from __future__ import annotations

from engines.mpi.cache.base import BlockManager
from engines.mpi.cache.contiguous_blocks import ContiguousBlocks
from engines.mpi.cache.paged_blocks import PagedBlocks
from engines.mpi.cache.window import Window

__all__ = ["BlockManager", "make_block_manager"]


def make_block_manager(
    num_blocks: int, block_size: int, paged: bool, prefix_caching: bool = False, window: Window | None = None
) -> BlockManager:
    """Create the allocator selected by `option.paged_attention`. Only the paged one has a prefix cache and frees
    blocks that have left the window."""
    if paged:
        return PagedBlocks(num_blocks, block_size, prefix_caching, window)
    return ContiguousBlocks(num_blocks, block_size)
