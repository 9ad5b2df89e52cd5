"""Which blocks of the KV cache hold nothing. Numbers only: no tensor, no sequence."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heappop, heappush


class BlockPool:
    """Free blocks, handed out one by one, the lowest first: so a lone sequence gets consecutive blocks, and its cache
    can be read as a view.

    Blocks [_untouched, num_blocks) are free and were not handed out since all were free; those free below are in a
    heap. O(log blocks) for each block.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._untouched = 0
        self._heap: list[int] = []
        self._is_free = bytearray(b"\x01" * num_blocks)

    @property
    def num_free(self) -> int:
        return self.num_blocks - self._untouched + len(self._heap)

    def take(self, count: int) -> list[int]:
        """The `count` lowest free blocks, in order.

        Raises:
            ValueError: fewer are free. The caller has to know.
        """
        if count > self.num_free:
            raise ValueError(f"{count} blocks asked for, {self.num_free} free")
        heap = self._heap
        blocks = [heappop(heap) for _ in range(min(count, len(heap)))]
        if len(blocks) < count:
            stop = self._untouched + count - len(blocks)
            blocks.extend(range(self._untouched, stop))
            self._untouched = stop
        for block in blocks:
            self._is_free[block] = 0
        return blocks

    def give_back(self, blocks: Iterable[int]) -> None:
        """Free blocks, in any order.

        Raises:
            ValueError: a block is free already or does not exist. Those before it have become free.
        """
        for block in blocks:
            if not 0 <= block < self.num_blocks or self._is_free[block]:
                raise ValueError(f"block {block} is not in use")
            self._is_free[block] = 1
            heappush(self._heap, block)
        if len(self._heap) == self._untouched:
            self._heap.clear()
            self._untouched = 0

    def free_blocks(self) -> set[int]:
        """All of them, for an audit. O(blocks).

        Raises:
            RuntimeError: the pool's own books do not agree.
        """
        free = {*self._heap, *range(self._untouched, self.num_blocks)}
        flagged = {block for block in range(self.num_blocks) if self._is_free[block]}
        if len(free) != self.num_free or free != flagged:
            raise RuntimeError("the pool's list of free blocks and its flags do not agree")
        return free


class RunPool:
    """Free blocks as sorted, disjoint, non-touching runs [start, stop), handed out whole, first-fit.

    Every call costs O(runs): at most one more than there are runs in use.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._starts = [0] if num_blocks else []
        self._stops = [num_blocks] if num_blocks else []

    def take(self, count: int) -> range | None:
        """`count` (at least 1) consecutive blocks, or None when no free run is that long."""
        for index, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            if stop - start >= count:
                if stop - start == count:
                    del self._starts[index], self._stops[index]
                else:
                    self._starts[index] = start + count
                self.num_free -= count
                return range(start, start + count)
        return None

    def give_back(self, run: range) -> None:
        """Free consecutive blocks.

        Raises:
            ValueError: a block of them is free already or does not exist; nothing is changed then.
        """
        start, stop = run.start, run.stop
        at = bisect_left(self._starts, start)
        overlaps = (at < len(self._starts) and self._starts[at] < stop) or (
            at > 0 and self._stops[at - 1] > start
        )
        if overlaps or run.step != 1 or not 0 <= start < stop <= self.num_blocks:
            raise ValueError(f"blocks {start} to {stop - 1} are not all in use")
        self.num_free += stop - start
        if at < len(self._starts) and self._starts[at] == stop:
            stop = self._stops[at]
            del self._starts[at], self._stops[at]
        if at > 0 and self._stops[at - 1] == start:
            self._stops[at - 1] = stop
        else:
            self._starts.insert(at, start)
            self._stops.insert(at, stop)

    def free_blocks(self) -> set[int]:
        """All of them, for an audit. O(blocks).

        Raises:
            RuntimeError: the pool's own books do not agree.
        """
        free: set[int] = set()
        last = -1
        for start, stop in zip(self._starts, self._stops, strict=True):
            if not last < start < stop <= self.num_blocks:
                raise RuntimeError("the pool's free runs overlap, touch, or are not in order")
            free.update(range(start, stop))
            last = stop
        if len(free) != self.num_free:
            raise RuntimeError(f"the pool counts {self.num_free} free blocks, its runs have {len(free)}")
        return free
