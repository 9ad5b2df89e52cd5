"""The KV cache of native CPU kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lmi_kernels.cpu import KvLayer, Storage

_BYTES = {Storage.FP32: 4, Storage.BF16: 2, Storage.FP16: 2, Storage.INT8: 1}
_SCALE_BYTES = 4
"""Size of a scale; each head of each token has one."""
_CACHE_LINE = 64


class NativeKvCache:
    """The blocks of each layer, concatenated. Each block has the pages of all heads; see `KvLayer` in native.h."""

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        num_blocks: int,
        block_size: int,
        head_dim: int,
        storage: Storage,
    ) -> None:
        """storage: dtype of keys and values: FP32, BF16, FP16 or INT8."""
        head_bytes = _BYTES[storage] * head_dim + (_SCALE_BYTES if storage is Storage.INT8 else 0)
        block_bytes = 2 * num_kv_heads * block_size * head_bytes
        # The kernel allocates numpy's zeros only when they are written, so a large cache costs nothing at start-up.
        # They begin 16 bytes after a cache line, so vectors would lie in two lines each.
        shape = (num_layers, num_blocks, block_bytes)
        memory = np.zeros(math.prod(shape) + _CACHE_LINE, dtype=np.uint8)
        start = -memory.ctypes.data % _CACHE_LINE
        self.blocks = memory[start : start + math.prod(shape)].reshape(shape)
        self.layers = [
            KvLayer(
                data=layer.ctypes.data,
                block_bytes=block_bytes,
                storage=storage,
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

    def copy_blocks(self, pairs: Sequence[int]) -> None:
        """Copy keys and values of all layers from block to block; see `KvCache.copy_blocks`."""
        for source, destination in zip(pairs[::2], pairs[1::2], strict=True):
            self.blocks[:, destination] = self.blocks[:, source]
