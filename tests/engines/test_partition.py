from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.partition import Shard, split_evenly, split_heads


@given(st.integers(1, 64), st.integers(0, 1000))
def test_parts_are_even_and_adjacent(parts: int, extra: int) -> None:
    total = parts + extra
    shards = [split_evenly(total, parts, index) for index in range(parts)]
    assert shards[0].start == 0
    assert shards[-1].stop == total
    assert all(left.stop == right.start for left, right in pairwise(shards))
    sizes = [shard.size for shard in shards]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_scaled_shard_counts_smaller_units() -> None:
    shard = Shard(2, 3).scaled(64)
    assert shard == Shard(128, 192)
    assert shard.size == 64


@pytest.mark.parametrize(("total", "parts"), [(3, 4), (0, 1)])
def test_too_few_units_raise(total: int, parts: int) -> None:
    with pytest.raises(ValueError, match=f"{total} units cannot be split over {parts} ranks"):
        split_evenly(total, parts, 0)


@pytest.mark.parametrize(("parts", "index"), [(2, 2), (2, -1), (4, 4), (4, -1), (0, 0)])
def test_an_invalid_part_raises(parts: int, index: int) -> None:
    with pytest.raises(ValueError, match=f"part {index} of {parts} does not exist"):
        split_evenly(8, parts, index)
    with pytest.raises(ValueError, match=f"part {index} of {parts} does not exist"):
        split_heads(9, 3, parts, index)


@st.composite
def _heads(draw: st.DrawFn) -> tuple[int, int, int]:
    """KV heads, query heads per KV head, and at most as many parts as query heads."""
    kv_heads, group_size = draw(st.integers(1, 16)), draw(st.integers(1, 80))
    return kv_heads, group_size, draw(st.integers(1, min(64, kv_heads * group_size)))


@given(_heads())
def test_every_query_head_has_one_owner_with_its_kv_head(shape: tuple[int, int, int]) -> None:
    kv_heads, group_size, parts = shape
    shares = [split_heads(kv_heads * group_size, kv_heads, parts, index) for index in range(parts)]
    assert shares[0].queries.start == 0
    assert shares[-1].queries.stop == kv_heads * group_size
    assert all(left.queries.stop == right.queries.start for left, right in pairwise(shares))
    for part in shares:
        assert part.queries.size >= 1
        # Exactly the KV heads of its query heads, with equally many query heads each.
        assert part.kv_heads == Shard(
            part.queries.start // group_size, (part.queries.stop - 1) // group_size + 1
        )
        assert part.queries.size % part.kv_heads.size == 0
        assert part.kv_heads.size == 1 or part.queries.size == group_size * part.kv_heads.size


@given(_heads())
def test_heads_are_split_evenly_and_the_first_part_has_the_most(shape: tuple[int, int, int]) -> None:
    kv_heads, group_size, parts = shape
    shares = [split_heads(kv_heads * group_size, kv_heads, parts, index) for index in range(parts)]
    assert max(part.queries.size for part in shares) == shares[0].queries.size
    assert max(part.kv_heads.size for part in shares) == shares[0].kv_heads.size
    copies = [
        sum(part.kv_heads.start <= kv_head < part.kv_heads.stop for part in shares)
        for kv_head in range(kv_heads)
    ]
    # Each KV head has one owner or, with more parts than KV heads, an equal share of the parts.
    assert sum(copies) == max(parts, kv_heads)
    assert max(copies) - min(copies) <= 1
    for kv_head in range(kv_heads):
        owners = [part.queries.size for part in shares if part.kv_heads == Shard(kv_head, kv_head + 1)]
        assert not owners or max(owners) - min(owners) <= 1


def test_three_kv_heads_over_four_ranks() -> None:
    assert [split_heads(9, 3, 4, rank).queries for rank in range(4)] == [
        Shard(0, 3),
        Shard(3, 6),
        Shard(6, 8),
        Shard(8, 9),
    ]


def test_more_parts_than_query_heads_raise() -> None:
    with pytest.raises(ValueError, match="9 query heads cannot be split over 10 ranks"):
        split_heads(9, 3, 10, 0)
