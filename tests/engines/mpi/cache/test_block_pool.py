"""The block pool against a plain set of free blocks."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engines.mpi.cache.block_pool import BlockPool
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
    def allocate(self, count: int) -> None:
        if count > len(self.free):
            with pytest.raises(
                ValueError, match=f"{count} blocks were requested, but {len(self.free)} are free"
            ):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        assert blocks == sorted(self.free)[:count]
        self.free -= set(blocks)

    @rule(count=st.integers(1, 10))
    def allocate_run(self, count: int) -> None:
        run = self.pool.allocate_run(count)
        fitting = [i for i in sorted(self.free) if self.free >= set(range(i, i + count))]
        assert run == (range(fitting[0], fitting[0] + count) if fitting else None)
        self.free -= set(run or ())

    @rule(data=st.data())
    def free_some(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.used), unique=True)) if self.used else []
        self.pool.free(blocks)
        self.free |= set(blocks)

    @rule(data=st.data())
    def free_a_block_that_is_free(self, data: st.DataObject) -> None:
        if self.free:
            block = data.draw(st.sampled_from(sorted(self.free)))
            with pytest.raises(ValueError, match=f"block {block} is not in use"):
                self.pool.free([block])

    @rule(block=st.one_of(st.integers(-5, -1), st.integers(100, 105)))
    def free_a_block_that_does_not_exist(self, block: int) -> None:
        with pytest.raises(ValueError, match="not in use"):
            self.pool.free([block])

    @invariant()
    def accounting(self) -> None:
        assert self.pool.num_free == len(self.free)
        assert self.pool.free_blocks() == self.free

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.pool.free(self.used)
            assert self.pool.allocate(len(self.all)) == sorted(self.all)


TestBlockPool = _BlockPoolMachine.TestCase
TestBlockPool.settings = examples(60, stateful_step_count=30)


def test_freeing_a_block_twice_in_one_call_raises() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(ValueError, match="block 1 is not in use"):
        pool.free([1, 1])
