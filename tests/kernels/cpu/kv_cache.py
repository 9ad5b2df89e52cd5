"""A KV cache of one layer in the layout of the native kernels, written and read with plain torch."""

from __future__ import annotations

import torch

from lmi_kernels.cpu.structs import KvLayer, Storage

DTYPES = {
    Storage.FP32: torch.float32,
    Storage.BF16: torch.bfloat16,
    Storage.FP16: torch.float16,
    Storage.INT8: torch.int8,
}


class KvCache:
    """Pages that consist of 0xff bytes at first, so that unwritten slots read as NaN."""

    def __init__(
        self, storage: Storage, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> None:
        self.storage = storage
        self.dtype = DTYPES[storage]
        self.block_size = block_size
        self.shape = (num_blocks, num_kv_heads, 2, head_dim * block_size)
        page_bytes = 2 * num_kv_heads * head_dim * block_size * self.dtype.itemsize
        scale_bytes = 2 * num_kv_heads * block_size * 4 if storage is Storage.INT8 else 0
        self.page_bytes = page_bytes
        self.data = torch.full((num_blocks, page_bytes + scale_bytes), 0xFF, dtype=torch.uint8)
        self.layer = KvLayer(
            data=self.data.data_ptr(),
            block_bytes=self.data.shape[1],
            storage=storage,
            block_size=block_size,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
        )

    def numbers(self) -> torch.Tensor:
        """Return a copy of the pages as stored: [blocks, KV heads, 2, head_dim * block_size]."""
        return self.data[:, : self.page_bytes].contiguous().view(self.dtype).view(self.shape)

    def scales(self) -> torch.Tensor:
        """Return a copy of the scales of int8 pages: [blocks, KV heads, 2, block_size]."""
        scales = self.data[:, self.page_bytes :].contiguous().view(torch.float32)
        return scales.view(*self.shape[:3], self.block_size)

    def read(self) -> torch.Tensor:
        """Return keys and values in fp64: [2, slots, KV heads, head_dim]."""
        num_blocks, num_kv_heads, _, page = self.shape
        head_dim = page // self.block_size
        numbers = self.numbers().double()
        keys = numbers[:, :, 0].view(num_blocks, num_kv_heads, head_dim, self.block_size).permute(0, 3, 1, 2)
        values = numbers[:, :, 1].view(num_blocks, num_kv_heads, self.block_size, head_dim).transpose(1, 2)
        both = torch.stack([keys, values])
        if self.storage is Storage.INT8:
            both = both * self.scales().double().permute(2, 0, 3, 1)[..., None]
        return both.reshape(2, num_blocks * self.block_size, num_kv_heads, head_dim)

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store tokens.

        Args:
            slots: [tokens].
            keys, values: [tokens, KV heads, head_dim], fp32.
        """
        num_blocks, num_kv_heads, _, page = self.shape
        head_dim = page // self.block_size
        blocks, offsets = slots // self.block_size, slots % self.block_size
        numbers, scales = self.numbers(), None
        if self.storage is Storage.INT8:
            scales = self.scales()
            for place, x in enumerate((keys, values)):
                scales[blocks, :, place, offsets] = x.abs().amax(dim=-1) / 127
            keys, values = ((x / (x.abs().amax(dim=-1, keepdim=True) / 127)).round() for x in (keys, values))
        pages = numbers.view(num_blocks, num_kv_heads, 2, head_dim, self.block_size)
        pages[blocks, :, 0, :, offsets] = keys.to(self.dtype)
        pages = numbers.view(num_blocks, num_kv_heads, 2, self.block_size, head_dim)
        pages[blocks, :, 1, offsets] = values.to(self.dtype)
        self.data[:, : self.page_bytes] = numbers.reshape(num_blocks, -1).view(torch.uint8)
        if scales is not None:
            self.data[:, self.page_bytes :] = scales.reshape(num_blocks, -1).view(torch.uint8)
