"""The pool of free KV cache blocks. Numbers only: no tensors, no sequences."""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """Free blocks, allocated lowest first. A lone sequence then gets consecutive blocks, and its cache can be read as a
    view.

    One byte per block, searched with `bytearray.find`: some microseconds at worst for a hundred thousand blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._is_free = bytearray(b"\x01" * num_blocks)
        self._lowest = 0
        """No free block has a lower number."""

    def allocate(self, count: int) -> list[int]:
        """Allocate the `count` lowest free blocks, in ascending order.

        Raises:
            ValueError: fewer are free. Callers check `num_free` before.
        """
        if count > self.num_free:
            raise ValueError(f"{count} blocks were requested, but {self.num_free} are free")
        blocks = []
        for _ in range(count):
            block = self._is_free.find(1, self._lowest)
            self._is_free[block] = 0
            self._lowest = block + 1
            blocks.append(block)
        self.num_free -= count
        return blocks

    def allocate_run(self, count: int) -> range | None:
        """Allocate the first run of `count` (at least 1) consecutive free blocks; None when no run is that long."""
        first = self._is_free.find(b"\x01" * count, self._lowest)
        if first < 0:
            return None
        self._is_free[first : first + count] = bytes(count)
        self.num_free -= count
        return range(first, first + count)

    def free(self, blocks: Iterable[int]) -> None:
        """Free blocks, in any order.

        Raises:
            ValueError: a block is free already or does not exist. The blocks before it are freed.
        """
        for block in blocks:
            if not 0 <= block < self.num_blocks or self._is_free[block]:
                raise ValueError(f"block {block} is not in use")
            self._is_free[block] = 1
            self.num_free += 1
            self._lowest = min(self._lowest, block)

    def free_blocks(self) -> set[int]:
        """Return all free blocks, for an audit. O(blocks).

        Raises:
            RuntimeError: the pool's own accounting is inconsistent.
        """
        free = {block for block in range(self.num_blocks) if self._is_free[block]}
        if len(free) != self.num_free or min(free, default=self.num_blocks) < self._lowest:
            raise RuntimeError(
                f"{len(free)} blocks are free, but the pool counts {self.num_free} or misses one"
            )
        return free
