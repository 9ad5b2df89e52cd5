"""Sequences' blocks: two allocators over one layout and one attention."""

from __future__ import annotations

from engines.mpi.cache.base import BlockManager
from engines.mpi.cache.contiguous_blocks import ContiguousBlocks
from engines.mpi.cache.paged_blocks import PagedBlocks
from engines.mpi.cache.window import Window

__all__ = ["BlockManager", "make_block_manager"]


def make_block_manager(
    num_blocks: int,
    block_size: int,
    paged: bool,
    prefix_caching: bool = False,
    window: Window | None = None,
) -> BlockManager:
    """The allocator that `option.paged_attention` asks for; only the paged one has a prefix cache, and frees what has
    left the window."""
    if paged:
        return PagedBlocks(num_blocks, block_size, prefix_caching, window)
    return ContiguousBlocks(num_blocks, block_size)
