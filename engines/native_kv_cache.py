"""The KV cache as native kernels read and write it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lmi_kernels.cpu.structs import STORAGES, KvLayer

_SCALE_BYTES = 4


class NativeKvCache:
    """Blocks of each layer one behind the other, in each the pages of all heads; see `KvLayer` in native.h."""

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        num_blocks: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> None:
        """dtype: fp32, bf16 or fp16."""
        block_bytes = 2 * num_kv_heads * block_size * head_dim * dtype.itemsize
        # numpy's zeros are pages that the kernel gives only when they are written: a large cache costs nothing at the
        # start.
        self.blocks = np.zeros((num_layers, num_blocks, block_bytes), dtype=np.uint8)
        """Their bytes."""
        self.layers = [
            KvLayer(
                data=layer.ctypes.data,
                block_bytes=block_bytes,
                storage=STORAGES[dtype],
                block_size=block_size,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
            )
            for layer in self.blocks
        ]
        self.num_blocks = num_blocks
        self.block_size = block_size

    @property
    def num_bytes(self) -> int:
        return self.blocks.nbytes

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero blocks whose content is not finite, before anyone else gets them."""
        if blocks:
            self.blocks[:, list(blocks)] = 0

    def copy_blocks(self, pairs: Sequence[int]) -> None:
        """Copy keys and values of all layers from block to block, as `KvCache.copy_blocks`."""
        for source, destination in zip(pairs[::2], pairs[1::2], strict=True):
            self.blocks[:, destination] = self.blocks[:, source]
