"""The block tables of the ranks against a plain dictionary."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mpi.cache.block_tables import BlockTables

_UPDATE = st.tuples(st.integers(0, 40), st.integers(0, 70), st.lists(st.integers(0, 2**31 - 1), max_size=20))


@given(st.lists(st.lists(_UPDATE, max_size=6), max_size=6))
def test_every_entry_is_the_latest_update(plans: list[list[tuple[int, int, list[int]]]]) -> None:
    tables = BlockTables()
    expected: dict[tuple[int, int], int] = {}
    for updates in plans:
        numbers = array("i")
        for row, first, blocks in updates:
            numbers.extend((row, first, len(blocks), *blocks))
            expected.update(((row, first + i), block) for i, block in enumerate(blocks))
        tables.apply(numbers)
        assert {place: int(tables.entries[place]) for place in expected} == expected


def test_tables_grow_in_few_steps() -> None:
    tables = BlockTables()
    shapes = set()
    for row in range(300):
        tables.apply([row, row, 1, row])
        shapes.add(tables.entries.shape)
    assert all(int(tables.entries[row, row]) == row for row in range(300))
    assert len(shapes) <= 12


@pytest.mark.parametrize("numbers", [[1, 0, 2, 5], [-1, 0, 1, 5], [1, -1, 1, 5], [1, 0, -1]])
def test_an_invalid_update_raises(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot be applied"):
        BlockTables().apply(numbers)


@pytest.mark.parametrize("numbers", [[1], [1, 0]])
def test_a_truncated_update_raises(numbers: list[int]) -> None:
    with pytest.raises(ValueError):
        BlockTables().apply(numbers)
