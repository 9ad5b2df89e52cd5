"""The pool against a model that is only a set of free blocks."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engines.mpi.block_pool import BlockPool


def _runs(free: set[int]) -> list[tuple[int, int]]:
    """Maximal runs of consecutive blocks as [start, stop), lowest first."""
    runs: list[tuple[int, int]] = []
    for block in sorted(free):
        if runs and runs[-1][1] == block:
            runs[-1] = (runs[-1][0], block + 1)
        else:
            runs.append((block, block + 1))
    return runs


class _PoolMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(0, 24))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.all = set(range(num_blocks))
        self.free = set(self.all)

    @property
    def used(self) -> list[int]:
        return sorted(self.all - self.free)

    @rule(count=st.integers(0, 10))
    def take(self, count: int) -> None:
        if count > len(self.free):
            with pytest.raises(ValueError, match=f"{count} blocks asked for, {len(self.free)} free"):
                self.pool.take(count)
            return
        blocks = self.pool.take(count)
        assert blocks == sorted(self.free)[:count]
        self.free -= set(blocks)

    @rule(count=st.integers(1, 10))
    def take_run(self, count: int) -> None:
        run = self.pool.take_run(count)
        fitting = [start for start, stop in _runs(self.free) if stop - start >= count]
        if not fitting:
            assert run is None
            return
        assert run == list(range(fitting[0], fitting[0] + count))
        self.free -= set(run)

    @rule(data=st.data())
    def give_back_some(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.used), unique=True)) if self.used else []
        self.pool.give_back(blocks)
        self.free |= set(blocks)

    @rule(data=st.data())
    def give_back_a_block_that_is_free(self, data: st.DataObject) -> None:
        if self.free:
            block = data.draw(st.sampled_from(sorted(self.free)))
            with pytest.raises(ValueError, match="not all in use"):
                self.pool.give_back([block])

    @rule(block=st.one_of(st.integers(-5, -1), st.integers(100, 105)))
    def give_back_a_block_that_does_not_exist(self, block: int) -> None:
        with pytest.raises(ValueError, match="not all in use"):
            self.pool.give_back([block])

    @invariant()
    def counts(self) -> None:
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_blocks == len(self.all)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.pool.give_back(self.used)
            assert self.pool.take_run(len(self.all)) == (sorted(self.all) if self.all else None)


TestBlockPool = _PoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_block_given_back_twice_at_once_is_refused() -> None:
    pool = BlockPool(4)
    pool.take(3)
    with pytest.raises(ValueError, match="not all in use"):
        pool.give_back([1, 1])


def test_a_run_across_the_end_of_the_pool_is_refused() -> None:
    pool = BlockPool(4)
    pool.take(4)
    with pytest.raises(ValueError, match="blocks 2 to 4 are not all in use"):
        pool.give_back([2, 3, 4])
    assert pool.num_free == 0


def test_single_blocks_of_a_lone_sequence_are_consecutive() -> None:
    pool = BlockPool(8)
    assert [pool.take(1)[0] for _ in range(8)] == list(range(8))
