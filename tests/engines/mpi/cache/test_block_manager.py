"""The contiguous and the paged allocator, case by case. Random operations are in test_allocator_operations.py."""

from __future__ import annotations

import pytest

from engines.mpi.cache.block_manager import BlockManager, make_block_manager
from engines.mpi.cache.window import Window
from engines.mpi.scheduler.sequence import Sequence
from tests.engines.mpi.cache.allocator_operations import make_sequence


def _sequence(name: str, prompt: int, new: int, tenant: str = "") -> Sequence:
    return make_sequence(name, list(range(prompt)), new, tenant)


def _compute(blocks: BlockManager, sequence: Sequence, num_tokens: int | None = None) -> bool:
    """Compute the first `num_tokens` tokens (default: all), adding tokens as needed, and cache the full pages."""
    num_tokens = sequence.num_tokens if num_tokens is None else num_tokens
    sequence.token_ids += range(sequence.num_tokens, num_tokens)
    if not blocks.extend(sequence, num_tokens):
        return False
    sequence.num_computed_tokens = num_tokens
    blocks.cache_full_pages(sequence)
    blocks.check()
    return True


def test_contiguous_admission_fails_when_the_free_blocks_are_scattered() -> None:
    blocks = make_block_manager(4, 1, paged=False)
    one, two, three, four = (_sequence(name, 1, 1) for name in "abcd")
    for sequence in (one, two, three, four):
        assert blocks.admit(sequence, reserve=True)
    blocks.release(one)
    blocks.release(three)
    assert blocks.num_free == 2
    assert not blocks.admit(_sequence("long", 2, 1), reserve=True)
    blocks.release(two)
    assert blocks.admit(_sequence("long", 2, 1), reserve=True)
    blocks.check()


def test_paged_admission_uses_scattered_free_blocks() -> None:
    blocks = make_block_manager(4, 1, paged=True)
    sequences = [_sequence(name, 1, 1) for name in "abcd"]
    for sequence in sequences:
        assert blocks.admit(sequence, reserve=True)
        assert blocks.extend(sequence, 1)
    blocks.release(sequences[0])
    blocks.release(sequences[2])
    scattered = _sequence("long", 2, 1)
    assert blocks.admit(scattered, reserve=True)
    assert blocks.extend(scattered, 2)
    assert scattered.block_table == [0, 2]


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
        _compute(blocks, sequence)
        blocks.release(sequence)


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize(("tokens", "expected"), [(1, 1), (2, 1), (5, 1), (6, 2), (9, 2), (10, 3)])
def test_the_last_token_needs_no_slot(paged: bool, tokens: int, expected: int) -> None:
    assert make_block_manager(8, 4, paged).blocks_needed(tokens) == expected


def test_a_reservation_is_refused_when_the_total_exceeds_the_pool() -> None:
    blocks = make_block_manager(4, 4, paged=True)
    first = _sequence("first", 1, 12)
    assert blocks.admit(first, reserve=True)
    assert blocks.num_promised == 3
    assert blocks.num_free == 4, "a reservation takes no block"
    assert not blocks.admit(_sequence("second", 1, 5), reserve=True)
    assert blocks.admit(_sequence("third", 1, 4), reserve=True)
    assert _compute(blocks, first, 12)
    assert blocks.num_promised == 1, "the block of the third sequence"


def test_an_unreserved_sequence_does_not_take_reserved_blocks() -> None:
    blocks = make_block_manager(4, 1, paged=True)
    promised = _sequence("promised", 1, 3)
    assert blocks.admit(promised, reserve=True)
    greedy = _sequence("greedy", 1, 3)
    assert blocks.admit(greedy, reserve=False)
    assert _compute(blocks, greedy, 1)
    assert not blocks.extend(greedy, 2)
    assert greedy.block_table == [0]
    assert _compute(blocks, promised, 3)


def test_unreserved_admission_needs_room_for_the_tokens_and_the_watermark() -> None:
    blocks = make_block_manager(4, 2, paged=True)
    assert not blocks.admit(_sequence("a", 6, 9), reserve=False, watermark=2)
    assert not blocks.admit(_sequence("b", 9, 9), reserve=False)
    c = _sequence("c", 6, 9)
    assert blocks.admit(c, reserve=False, watermark=1)
    assert blocks.num_promised == 0
    assert _compute(blocks, c)
    assert not blocks.admit(_sequence("d", 3, 1), reserve=False)
    assert blocks.admit(_sequence("e", 2, 1), reserve=False)


@pytest.mark.parametrize("paged", [True, False])
def test_release_frees_blocks_and_reservations_once(paged: bool) -> None:
    blocks = make_block_manager(4, 2, paged, prefix_caching=True)
    sequence = _sequence("a", 5, 2)
    assert blocks.admit(sequence, reserve=True)
    _compute(blocks, sequence, 5)
    for _ in range(2):
        blocks.release(sequence)
        blocks.check()
        assert (sequence.block_table, sequence.num_computed_tokens, blocks.num_promised) == ([], 0, 0)
        assert blocks.num_used == 0
    blocks.release(_sequence("stranger", 3, 3))
    assert blocks.num_free + blocks.num_cached == 4


@pytest.mark.parametrize("paged", [True, False])
def test_admitting_a_sequence_twice_raises(paged: bool) -> None:
    blocks = make_block_manager(4, 2, paged)
    sequence = _sequence("a", 1, 1)
    assert blocks.admit(sequence, reserve=True)
    with pytest.raises(ValueError, match="'a' is already admitted"):
        blocks.admit(sequence, reserve=True)


@pytest.mark.parametrize("paged", [True, False])
def test_unfilled_slots_are_allocated_but_not_written(paged: bool) -> None:
    blocks = make_block_manager(8, 4, paged)
    sequence = _sequence("a", 5, 8)
    assert blocks.admit(sequence, reserve=True)
    assert blocks.num_unfilled_slots == (0 if paged else 12)
    _compute(blocks, sequence)
    assert blocks.num_unfilled_slots == (3 if paged else 7)
    blocks.release(sequence)
    assert blocks.num_unfilled_slots == 0


def _parent_and_child(blocks: BlockManager, reserve: bool) -> tuple[Sequence, Sequence]:
    """Ten tokens each, of at most 14. The parent has computed nine: two full blocks of four, and one token."""
    parent, child = _sequence("parent", 10, 4), _sequence("child", 10, 4)
    assert blocks.admit(parent, reserve)
    assert blocks.admit(child, reserve)
    assert _compute(blocks, parent, 9)
    return parent, child


@pytest.mark.parametrize("caching", [True, False])
def test_a_paged_fork_shares_full_blocks_and_copies_the_last(caching: bool) -> None:
    blocks = make_block_manager(8, 4, paged=True, prefix_caching=caching)
    parent, child = _parent_and_child(blocks, reserve=True)
    assert blocks.fork(parent, child, 9) == [(parent.block_table[2], child.block_table[2])]
    assert child.block_table[:2] == parent.block_table[:2]
    assert child.block_table[2] not in parent.block_table
    assert child.num_computed_tokens == 9
    assert blocks.num_promised == 2
    assert blocks.num_used == 4
    assert blocks.num_unfilled_slots == 6
    blocks.check()
    blocks.release(parent)
    assert blocks.num_used == 3
    assert _compute(blocks, child, 13)
    blocks.release(child)
    assert blocks.num_free + blocks.num_cached == 8


def test_a_fork_at_the_end_of_a_block_copies_nothing() -> None:
    blocks = make_block_manager(8, 4, paged=True)
    parent, child = _parent_and_child(blocks, reserve=True)
    assert blocks.fork(parent, child, 8) == []
    assert child.block_table == parent.block_table[:2]
    blocks.check()


def test_blocks_saved_by_a_fork_can_be_reserved_by_others() -> None:
    blocks = make_block_manager(8, 4, paged=True)
    parent, child = _parent_and_child(blocks, reserve=True)
    third = _sequence("third", 1, 8)
    assert not blocks.admit(third, reserve=True)
    assert blocks.fork(parent, child, 9) is not None
    assert blocks.admit(third, reserve=True)
    for sequence, last in ((parent, 13), (child, 13), (third, 8)):
        assert _compute(blocks, sequence, last)
    assert blocks.num_free == 0


def test_an_unreserved_fork_does_not_copy_into_reserved_blocks() -> None:
    blocks = make_block_manager(7, 4, paged=True)
    parent, child = _parent_and_child(blocks, reserve=False)
    assert blocks.admit(_sequence("promised", 1, 16), reserve=True)
    assert blocks.fork(parent, child, 9) is None
    assert (child.block_table, child.num_computed_tokens) == ([], 0)
    blocks.check()
    assert blocks.fork(parent, child, 8) == []


def test_a_fork_continues_after_pages_from_the_prefix_cache() -> None:
    blocks = make_block_manager(8, 4, paged=True, prefix_caching=True)
    parent = _sequence("parent", 10, 4)
    assert blocks.admit(parent, reserve=True)
    assert _compute(blocks, parent, 9)
    child = _sequence("child", 10, 4)
    assert blocks.admit(child, reserve=True)
    assert child.num_computed_tokens == 8
    assert blocks.fork(parent, child, 9) == [(parent.block_table[2], child.block_table[2])]
    assert child.block_table[:2] == parent.block_table[:2]
    assert blocks.num_promised == 2
    blocks.check()


def test_a_contiguous_fork_copies_all_blocks_in_use() -> None:
    blocks = make_block_manager(8, 4, paged=False)
    parent, child = _parent_and_child(blocks, reserve=True)
    assert blocks.fork(parent, child, 9) == [(0, 4), (1, 5), (2, 6)]
    assert child.num_computed_tokens == 9
    assert child.block_table == [4, 5, 6, 7]
    blocks.check()


@pytest.mark.parametrize("paged", [True, False])
def test_invalid_forks_raise(paged: bool) -> None:
    blocks = make_block_manager(16, 4, paged)
    parent, child = _parent_and_child(blocks, reserve=True)
    with pytest.raises(
        ValueError, match="10 tokens of sequence 'parent' were requested, but only 9 are computed"
    ):
        blocks.fork(parent, child, 10)
    short = _sequence("short", 8, 1)
    assert blocks.admit(short, reserve=True)
    with pytest.raises(ValueError, match="'short' has at most 9 tokens, fewer than 9"):
        blocks.fork(parent, short, 9)
    with pytest.raises(ValueError, match="both admitted"):
        blocks.fork(parent, _sequence("stranger", 10, 4), 9)
    with pytest.raises(ValueError, match="both admitted"):
        blocks.fork(parent, parent, 9)
    other = _sequence("other", 10, 4, tenant="other")
    assert blocks.admit(other, reserve=True)
    with pytest.raises(ValueError, match="another tenant"):
        blocks.fork(parent, other, 9)
    blocks.check()


@pytest.mark.parametrize("paged", [True, False])
def test_check_detects_a_corrupted_block_table(paged: bool) -> None:
    blocks = make_block_manager(8, 2, paged)
    for name in "ab":
        sequence = _sequence(name, 4, 1)
        assert blocks.admit(sequence, reserve=True)
        assert _compute(blocks, sequence)
    sequence.block_table[1] = 0
    with pytest.raises(RuntimeError, match=r"block|blocks"):
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
    assert blocks.num_promised == 8
    assert not blocks.admit(_sequence("c", 1, 5), reserve=True), "one block is left, but two are needed"
    for length in range(4, 101, 4):
        for sequence in (first, second):
            assert _compute(blocks, sequence, length)
            assert blocks.num_used + blocks.num_promised <= 8
    assert blocks.num_promised == 0, "both have all the blocks that they can ever hold"
    for sequence in (first, second):
        blocks.release(sequence)
    assert (blocks.num_free, blocks.num_promised) == (9, 0)
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
