"""The pools against models that are only sets of free blocks."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engines.mpi.cache.block_pool import BlockPool, RunPool
from tests.support.examples import examples


class _BlockPoolMachine(RuleBasedStateMachine):
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

    @rule(data=st.data())
    def give_back_some(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.used), unique=True)) if self.used else []
        self.pool.give_back(blocks)
        self.free |= set(blocks)

    @rule()
    def give_back_all(self) -> None:
        self.pool.give_back(self.used)
        self.free = set(self.all)

    @rule(data=st.data())
    def give_back_a_block_that_is_free(self, data: st.DataObject) -> None:
        if self.free:
            block = data.draw(st.sampled_from(sorted(self.free)))
            with pytest.raises(ValueError, match=f"block {block} is not in use"):
                self.pool.give_back([block])

    @rule(block=st.one_of(st.integers(-5, -1), st.integers(100, 105)))
    def give_back_a_block_that_does_not_exist(self, block: int) -> None:
        with pytest.raises(ValueError, match="not in use"):
            self.pool.give_back([block])

    @invariant()
    def books(self) -> None:
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_blocks == len(self.all)
        assert self.pool.free_blocks() == self.free

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.pool.give_back(self.used)
            assert self.pool.take(len(self.all)) == sorted(self.all)


class _RunPoolMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(0, 24))
    def start(self, num_blocks: int) -> None:
        self.pool = RunPool(num_blocks)
        self.all = set(range(num_blocks))
        self.free = set(self.all)
        self.runs: list[range] = []

    @rule(count=st.integers(1, 10))
    def take(self, count: int) -> None:
        run = self.pool.take(count)
        fitting = [i for i in sorted(self.free) if self.free >= set(range(i, i + count))]
        assert run == (range(fitting[0], fitting[0] + count) if fitting else None)
        if run is not None:
            self.free -= set(run)
            self.runs.append(run)

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.runs:
            run = self.runs.pop(data.draw(st.integers(0, len(self.runs) - 1)))
            self.pool.give_back(run)
            self.free |= set(run)

    @rule(first=st.integers(-3, 26), count=st.integers(0, 6))
    def give_back_what_is_not_in_use(self, first: int, count: int) -> None:
        run = range(first, first + count)
        if not run or self.free.intersection(run) or not self.all.issuperset(run):
            with pytest.raises(ValueError, match="not all in use"):
                self.pool.give_back(run)

    @invariant()
    def books(self) -> None:
        assert self.pool.num_free == len(self.free)
        assert self.pool.free_blocks() == self.free

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for run in self.runs:
                self.pool.give_back(run)
            if self.all:
                assert self.pool.take(len(self.all)) == range(len(self.all))


_SETTINGS = examples(60, stateful_step_count=30)
TestBlockPool = _BlockPoolMachine.TestCase
TestBlockPool.settings = _SETTINGS
TestRunPool = _RunPoolMachine.TestCase
TestRunPool.settings = _SETTINGS


def test_a_block_given_back_twice_at_once_is_refused() -> None:
    pool = BlockPool(4)
    pool.take(3)
    with pytest.raises(ValueError, match="block 1 is not in use"):
        pool.give_back([1, 1])


def test_a_run_across_the_end_of_the_pool_is_refused() -> None:
    pool = RunPool(4)
    pool.take(4)
    with pytest.raises(ValueError, match="blocks 2 to 4 are not all in use"):
        pool.give_back(range(2, 5))
    assert pool.num_free == 0


def test_single_blocks_of_a_lone_sequence_are_consecutive() -> None:
    pool = BlockPool(8)
    assert [pool.take(1)[0] for _ in range(8)] == list(range(8))
