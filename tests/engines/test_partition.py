from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.partition import Shard, split_evenly


@given(st.integers(1, 64), st.integers(0, 1000))
def test_parts_are_even_and_lie_side_by_side(parts: int, more: int) -> None:
    total = parts + more
    shards = [split_evenly(total, parts, index) for index in range(parts)]
    assert shards[0].start == 0
    assert shards[-1].stop == total
    assert all(left.stop == right.start for left, right in pairwise(shards))
    sizes = [shard.size for shard in shards]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_three_kv_heads_over_two_ranks() -> None:
    assert [split_evenly(3, 2, rank) for rank in range(2)] == [Shard(0, 2), Shard(2, 3)]


def test_scaled_counts_in_smaller_units() -> None:
    shard = Shard(2, 3).scaled(64)
    assert shard == Shard(128, 192)
    assert shard.size == 64


@pytest.mark.parametrize(("total", "parts"), [(3, 4), (0, 1)])
def test_too_few_units_are_refused(total: int, parts: int) -> None:
    with pytest.raises(ValueError, match=f"{total} units cannot be dealt out to {parts} ranks"):
        split_evenly(total, parts, 0)


@pytest.mark.parametrize(("parts", "index"), [(2, 2), (2, -1), (0, 0)])
def test_a_part_that_does_not_exist_is_refused(parts: int, index: int) -> None:
    with pytest.raises(ValueError, match=f"part {index} of {parts} does not exist"):
        split_evenly(8, parts, index)
