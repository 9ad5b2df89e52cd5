"""Which blocks of the KV cache are free. Numbers only: no tensor, no sequence."""

from __future__ import annotations

from bisect import bisect_left


class BlockPool:
    """Free blocks as sorted, disjoint, non-touching runs [start, stop).

    Single blocks are taken from the lowest run, so that a lone sequence gets consecutive blocks and its cache can
    be read as a view; whole runs are taken first-fit. Both cost O(number of runs).
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._starts = [0] if num_blocks else []
        self._stops = [num_blocks] if num_blocks else []

    def take(self, count: int) -> list[int]:
        """The `count` lowest free blocks, in order.

        Raises:
            ValueError: fewer are free. The caller has to know.
        """
        if count > self.num_free:
            raise ValueError(f"{count} blocks asked for, {self.num_free} free")
        blocks: list[int] = []
        while len(blocks) < count:
            blocks.extend(self._cut(0, min(count - len(blocks), self._stops[0] - self._starts[0])))
        return blocks

    def take_run(self, count: int) -> list[int] | None:
        """`count` consecutive blocks, or None when no free run is that long."""
        for index, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            if stop - start >= count:
                return list(self._cut(index, count))
        return None

    def give_back(self, blocks: list[int]) -> None:
        """Free blocks, in any order.

        Raises:
            ValueError: a block is free already or does not exist.
        """
        ordered = sorted(blocks)
        start = 0
        for i in range(1, len(ordered) + 1):
            if i == len(ordered) or ordered[i] != ordered[i - 1] + 1:
                if i > start:
                    self._insert(ordered[start], ordered[i - 1] + 1)
                start = i

    def _cut(self, index: int, count: int) -> range:
        start = self._starts[index]
        if start + count == self._stops[index]:
            del self._starts[index], self._stops[index]
        else:
            self._starts[index] = start + count
        self.num_free -= count
        return range(start, start + count)

    def _insert(self, start: int, stop: int) -> None:
        at = bisect_left(self._starts, start)
        overlaps = (at < len(self._starts) and self._starts[at] < stop) or (
            at > 0 and self._stops[at - 1] > start
        )
        if overlaps or start < 0 or stop > self.num_blocks:
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
