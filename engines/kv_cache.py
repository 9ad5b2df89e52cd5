"""The KV cache's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

_MOST_COPIES = 256
"""Blocks that are copied at once."""


class KvCache:
    """One pool a layer, [2, num_kv_heads, num_blocks, block_size, head_dim], keys first: one head's page is a
    contiguous box and a run of pages is a view. Only `store_kv` and the methods here write it.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        num_blocks: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, 2, num_kv_heads, num_blocks, block_size, head_dim)
        # Zeroed, since hidden keys are multiplied by 0 and 0 * NaN is NaN. On a CPU numpy's zeros are pages that
        # the kernel gives only when they are written: a large cache costs nothing at the start.
        if device.type == "cpu" and dtype == torch.float32:
            pools = torch.from_numpy(np.zeros(shape, dtype=np.float32))
        else:
            pools = torch.zeros(shape, dtype=dtype, device=device)
        self._pools = pools
        self.layers = list(pools.unbind(0))
        self.num_blocks = num_blocks
        self.block_size = block_size

    @property
    def num_bytes(self) -> int:
        return self._pools.numel() * self._pools.element_size()

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero blocks whose content is not finite, before anyone else gets them."""
        if blocks:
            self._pools[:, :, :, list(blocks)] = 0

    def copy_blocks(self, pairs: Sequence[int]) -> None:
        """Copy keys and values of all layers from block to block.

        Args:
            pairs: source, destination, source, destination, ...; as if one after the other, so what an earlier pair
                has written a later one reads.
        """
        for places in _independent(pairs):
            sent = torch.tensor(places)
            if self._pools.is_cuda:
                sent = sent.pin_memory().to(self._pools.device, non_blocking=True)
            # Layer by layer, because what is read at once takes memory beside the cache.
            for pool in self.layers:
                pool.index_copy_(2, sent[1], pool.index_select(2, sent[0]))


def _independent(pairs: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Cut copies into runs in which nothing is read or written again that the run has written."""
    sources: list[int] = []
    written: dict[int, None] = {}
    for source, destination in zip(pairs[::2], pairs[1::2], strict=True):
        if source in written or destination in written or len(written) == _MOST_COPIES:
            yield sources, list(written)
            sources, written = [], {}
        sources.append(source)
        written[destination] = None
    if sources:
        yield sources, list(written)
