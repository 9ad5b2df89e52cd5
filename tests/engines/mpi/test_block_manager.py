"""What the two allocators promise: who is admitted never lacks a block, and all come back."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engines.mpi.block_manager import BlockManager, make_block_manager
from engines.mpi.sequence import Sequence
from tests.engines.mpi.fakes import make_request


def _sequence(id: str, prompt: int, new: int) -> Sequence:  # noqa: A002
    return Sequence(make_request(id, range(1, prompt + 1), new))


class _BlocksMachine(RuleBasedStateMachine):
    paged: bool

    @initialize(num_blocks=st.integers(1, 20), block_size=st.integers(1, 5))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.blocks: BlockManager = make_block_manager(num_blocks, block_size, self.paged)
        self.live: dict[str, Sequence] = {}
        self.count = 0

    def needed(self, sequence: Sequence) -> int:
        """The last token of a sequence is never computed and needs no slot."""
        size = self.blocks.block_size
        return -(-(sequence.max_num_tokens - 1) // size)

    def room(self, needed: int) -> bool:
        if self.paged:
            return sum(map(self.needed, self.live.values())) + needed <= self.blocks.num_blocks
        used = {block for sequence in self.live.values() for block in sequence.block_table}
        free = [block not in used for block in range(self.blocks.num_blocks)]
        return any(all(free[i : i + needed]) for i in range(len(free) - needed + 1))

    @rule(prompt=st.integers(1, 20), new=st.integers(1, 20))
    def admit(self, prompt: int, new: int) -> None:
        self.count += 1
        sequence = _sequence(str(self.count), prompt, new)
        needed = self.needed(sequence)
        free = self.blocks.num_free
        expected = self.room(needed)
        assert self.blocks.blocks_needed(sequence.max_num_tokens) == needed
        assert self.blocks.admit(sequence) == expected
        if expected:
            self.live[sequence.id] = sequence
            assert self.blocks.num_free == (free if self.paged else free - needed)
        else:
            assert self.blocks.num_free == free
            assert sequence.block_table == []
            assert sequence.num_reserved_blocks == 0

    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        """An admitted sequence reaches any length up to its worst case, whatever else runs."""
        if not self.live:
            return
        sequence = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        now = sequence.num_computed_tokens
        length = data.draw(st.integers(now, max(now, sequence.max_num_tokens - 1)))
        before = list(sequence.block_table)
        self.blocks.extend(sequence, length)
        sequence.num_computed_tokens = length
        assert sequence.block_table[: len(before)] == before
        assert len(sequence.block_table) * self.blocks.block_size >= length
        if self.paged:
            assert (len(sequence.block_table) - 1) * self.blocks.block_size < max(length, 1)

    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, twice: bool) -> None:
        if not self.live:
            return
        sequence = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        self.blocks.release(sequence)
        if twice:
            self.blocks.release(sequence)
        assert sequence.block_table == []

    @rule()
    def release_one_that_never_was_admitted(self) -> None:
        self.blocks.release(_sequence("stranger", 3, 3))

    @invariant()
    def accounting(self) -> None:
        if not hasattr(self, "blocks"):
            return
        tables = [sequence.block_table for sequence in self.live.values()]
        used = [block for table in tables for block in table]
        assert len(used) == len(set(used)), "a block stands in two tables"
        assert all(0 <= block < self.blocks.num_blocks for block in used)
        assert self.blocks.num_free + len(used) == self.blocks.num_blocks
        slots = len(used) * self.blocks.block_size
        filled = sum(sequence.num_computed_tokens for sequence in self.live.values())
        assert self.blocks.num_unfilled_slots == slots - filled
        if not self.paged:
            assert all(table == list(range(table[0], table[0] + len(table))) for table in tables)

    def teardown(self) -> None:
        """Everybody grows to the worst case at once, then all blocks come back."""
        if not hasattr(self, "blocks"):
            return
        for sequence in self.live.values():
            self.blocks.extend(sequence, sequence.max_num_tokens - 1)
        for sequence in self.live.values():
            self.blocks.release(sequence)
        assert self.blocks.num_free == self.blocks.num_blocks
        assert self.blocks.num_unfilled_slots == 0


class _PagedMachine(_BlocksMachine):
    paged = True


class _ContiguousMachine(_BlocksMachine):
    paged = False


_SETTINGS = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestPagedBlocks = _PagedMachine.TestCase
TestPagedBlocks.settings = _SETTINGS
TestContiguousBlocks = _ContiguousMachine.TestCase
TestContiguousBlocks.settings = _SETTINGS


def test_contiguous_admission_fails_when_the_free_blocks_do_not_lie_together() -> None:
    blocks = make_block_manager(4, 1, paged=False)
    one, two, three, four = (_sequence(name, 1, 1) for name in "abcd")
    for sequence in (one, two, three, four):
        assert blocks.admit(sequence)
    blocks.release(one)
    blocks.release(three)
    assert blocks.num_free == 2
    assert not blocks.admit(_sequence("long", 2, 1))


def test_paged_admission_uses_free_blocks_wherever_they_lie() -> None:
    blocks = make_block_manager(4, 1, paged=True)
    sequences = [_sequence(name, 1, 1) for name in "abcd"]
    for sequence in sequences:
        assert blocks.admit(sequence)
        blocks.extend(sequence, 1)
    blocks.release(sequences[0])
    blocks.release(sequences[2])
    scattered = _sequence("long", 2, 1)
    assert blocks.admit(scattered)
    blocks.extend(scattered, 2)
    assert scattered.block_table == [0, 2]


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize(("tokens", "expected"), [(1, 1), (2, 1), (5, 1), (6, 2), (9, 2), (10, 3)])
def test_the_last_token_needs_no_slot(paged: bool, tokens: int, expected: int) -> None:
    assert make_block_manager(8, 4, paged).blocks_needed(tokens) == expected
