"""The allocators where random operations (test_allocator_operations.py) do not reach: invalid calls, windows."""

from __future__ import annotations

import pytest

from engines.mpi.cache.block_manager import BlockManager, make_block_manager
from engines.mpi.cache.window import Window
from engines.mpi.scheduler.sequence import Sequence
from tests.engines.mpi.cache.allocator_operations import make_sequence


def _sequence(name: str, prompt: int, new: int) -> Sequence:
    return make_sequence(name, list(range(prompt)), new)


def _compute(blocks: BlockManager, sequence: Sequence, num_tokens: int) -> bool:
    """Compute the first `num_tokens` tokens, adding tokens as needed, and cache the full pages."""
    sequence.token_ids += range(sequence.num_tokens, num_tokens)
    if not blocks.extend(sequence, num_tokens):
        return False
    sequence.num_computed_tokens = num_tokens
    blocks.cache_full_pages(sequence)
    blocks.check()
    return True


@pytest.mark.parametrize("caching", [True, False])
def test_a_lone_sequence_gets_consecutive_blocks(caching: bool) -> None:
    blocks = make_block_manager(9, 2, paged=True, prefix_caching=caching)
    for name in "ab":
        sequence = make_sequence(name, [ord(name)] * 2, 7)
        assert blocks.admit(sequence, reserve=True)
        for length in range(2, 9):
            assert blocks.extend(sequence, length)
        first = sequence.block_table[0]
        assert sequence.block_table == list(range(first, first + 4))
        assert _compute(blocks, sequence, 8)
        blocks.release(sequence)


@pytest.mark.parametrize("paged", [True, False])
def test_admitting_a_sequence_twice_raises(paged: bool) -> None:
    blocks = make_block_manager(4, 2, paged)
    sequence = _sequence("a", 1, 1)
    assert blocks.admit(sequence, reserve=True)
    assert blocks.num_reserved == (1 if paged else 0)
    with pytest.raises(ValueError, match="'a' is already admitted"):
        blocks.admit(sequence, reserve=True)


@pytest.mark.parametrize("paged", [True, False])
def test_invalid_forks_raise(paged: bool) -> None:
    blocks = make_block_manager(16, 4, paged)
    parent, child, other = (_sequence(name, 10, 4) for name in ("parent", "child", "other"))
    short = _sequence("short", 8, 1)
    for sequence in (parent, child, short):
        assert blocks.admit(sequence, reserve=True)
    assert _compute(blocks, parent, 9)
    with pytest.raises(
        ValueError, match="10 tokens of sequence 'parent' were requested, but only 9 are computed"
    ):
        blocks.fork(parent, child, 10)
    with pytest.raises(ValueError, match="'short' has at most 9 tokens, fewer than 9"):
        blocks.fork(parent, short, 9)
    for sequence in (other, parent):
        with pytest.raises(ValueError, match="both admitted"):
            blocks.fork(parent, sequence, 9)
    stranger = make_sequence("stranger", list(range(10)), 4, tenant="stranger")
    assert blocks.admit(stranger, reserve=True)
    with pytest.raises(ValueError, match="another tenant"):
        blocks.fork(parent, stranger, 9)
    blocks.check()


@pytest.mark.parametrize("paged", [True, False])
def test_check_detects_a_corrupted_block_table(paged: bool) -> None:
    blocks = make_block_manager(8, 2, paged)
    for name in "ab":
        sequence = _sequence(name, 4, 1)
        assert blocks.admit(sequence, reserve=True)
        assert _compute(blocks, sequence, 4)
    sequence.block_table[1] = 0
    with pytest.raises(RuntimeError, match="block"):
        blocks.check()


def test_a_reservation_covers_only_the_blocks_of_one_window() -> None:
    """A window of 8 tokens and a chunk of 4 span at most 4 blocks of 4 tokens. The whole sequence has 25."""
    blocks = make_block_manager(9, 4, paged=True, window=Window(8, max_chunk=4))
    first, second = (_sequence(name, 4, 97) for name in "ab")
    assert blocks.blocks_needed(101) == 4
    assert blocks.blocks_needed(101, whole=True) == 25
    assert blocks.blocks_needed(5) == 1
    assert blocks.admit(first, reserve=True)
    assert blocks.admit(second, reserve=True)
    assert blocks.num_reserved == 8
    assert not blocks.admit(_sequence("c", 1, 5), reserve=True), "one block is left, but two are needed"
    for length in range(4, 101, 4):
        for sequence in (first, second):
            assert _compute(blocks, sequence, length)
            assert blocks.num_used + blocks.num_reserved <= 8
    assert blocks.num_reserved == 0, "both have all the blocks that they can ever hold"
    for sequence in (first, second):
        blocks.release(sequence)
    assert (blocks.num_free, blocks.num_reserved) == (9, 0)
    blocks.check()


def test_a_window_that_leaves_shared_blocks_gets_new_ones() -> None:
    """The first sequence that leaves a shared block does not free it, but needs a new block nevertheless."""
    blocks = make_block_manager(8, 4, paged=True, prefix_caching=True, window=Window(8, max_chunk=4))
    first, second, third = (_sequence(name, 9, 90) for name in "abc")
    assert blocks.admit(first, reserve=True)
    for length in (4, 8, 9):
        assert _compute(blocks, first, length)
    assert blocks.admit(second, reserve=True)
    assert second.block_table == first.block_table[:2]
    assert not blocks.admit(third, reserve=True), "a shared block may become two blocks later"
    for length in range(12, 97, 4):
        assert _compute(blocks, second, length)
    for length in range(12, 97, 4):
        assert _compute(blocks, first, length)


def test_beams_reserve_the_whole_sequence() -> None:
    blocks = make_block_manager(9, 4, paged=True, window=Window(8, max_chunk=4))
    beam = _sequence("beam", 4, 97)
    beam.is_beam = True
    assert not blocks.admit(beam, reserve=True)
