"""Tensors of the KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


class KvCache:
    """One pool per layer, [2, num_kv_heads, num_blocks, block_size, head_dim], keys first.

    The page of one head is contiguous, and a run of pages is a view. Only `store_kv` and the methods here write to it.
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
        # Zeroed, because masked keys are multiplied by 0, and 0 * NaN is NaN. On a CPU the kernel allocates numpy's
        # zeros only when they are written, so a large cache costs nothing at start-up.
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

    def copy_blocks(self, pairs: Sequence[int]) -> None:
        """Copy keys and values of all layers from block to block, one pair after another.

        pairs: source, destination, source, destination, ...
        """
        for source, destination in zip(pairs[::2], pairs[1::2], strict=True):
            self._pools[:, :, :, destination] = self._pools[:, :, :, source]
