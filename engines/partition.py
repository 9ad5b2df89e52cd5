"""How a dimension is dealt out to ranks. Plain numbers: used before any tensor exists."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """The half-open range [start, stop) of a dimension that one rank owns."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def scaled(self, factor: int) -> Shard:
        """The same range in units `factor` times smaller: kv heads to rows of a weight, say."""
        return Shard(self.start * factor, self.stop * factor)


def split_evenly(total: int, parts: int, index: int) -> Shard:
    """Part `index` of `total` units dealt out as evenly as possible, the larger parts first.

    Raises:
        ValueError: fewer units than parts, or an index out of range.
    """
    if not 0 <= index < parts:
        raise ValueError(f"part {index} of {parts} does not exist")
    if total < parts:
        raise ValueError(f"{total} units cannot be dealt out to {parts} ranks: each needs at least one")
    base, extra = divmod(total, parts)
    start = index * base + min(index, extra)
    return Shard(start, start + base + (1 if index < extra else 0))
