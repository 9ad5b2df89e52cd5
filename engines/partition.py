"""Partition of dimensions over ranks, as plain numbers."""

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
        """Return the same range in units that are `factor` times smaller, such as KV heads to rows of a weight."""
        return Shard(self.start * factor, self.stop * factor)


@dataclass(frozen=True, slots=True)
class HeadShare:
    """One rank's query heads, and the KV heads that they see."""

    queries: Shard
    kv_heads: Shard


def split_evenly(total: int, parts: int, index: int) -> Shard:
    """Return part `index` of `total` units, split as evenly as possible, the larger parts first.

    Raises:
        ValueError: fewer units than parts, or an index out of range.
    """
    if not 0 <= index < parts:
        raise ValueError(f"part {index} of {parts} does not exist")
    if total < parts:
        raise ValueError(f"{total} units cannot be split over {parts} ranks: each needs at least one")
    base, extra = divmod(total, parts)
    start = index * base + min(index, extra)
    return Shard(start, start + base + (1 if index < extra else 0))


def split_heads(num_heads: int, num_kv_heads: int, parts: int, index: int) -> HeadShare:
    """Return part `index` of a model's heads, each query head with its KV head. No part is larger than part 0.

    KV heads are split as evenly as possible, with all their query heads. With more parts than KV heads, each part holds
    one KV head, and the parts that hold the same KV head split its query heads.

    Raises:
        ValueError: fewer query heads than parts, or an index out of range.
    """
    share = num_heads // num_kv_heads
    if parts <= num_kv_heads:
        groups = split_evenly(num_kv_heads, parts, index)
        return HeadShare(groups.scaled(share), groups)
    if num_heads < parts:
        raise ValueError(
            f"{num_heads} query heads cannot be split over {parts} ranks: each needs at least one"
        )
    # From the last KV head to the first, so that KV heads with few parts, which are large, come first.
    place = parts - 1 - index
    for kv_head in range(num_kv_heads):
        sharers = split_evenly(parts, num_kv_heads, kv_head)
        if sharers.start <= place < sharers.stop:
            owner = num_kv_heads - 1 - kv_head
            part = split_evenly(share, sharers.size, sharers.stop - 1 - place)
            return HeadShare(
                Shard(owner * share + part.start, owner * share + part.stop), Shard(owner, owner + 1)
            )
    raise ValueError(f"part {index} of {parts} does not exist")
