"""The prefix cache, through the block manager: look-ups, eviction, key collisions."""

from __future__ import annotations

from array import array

import pytest

from engines.mpi.cache.paged_blocks import PagedBlocks
from engines.mpi.cache.prefix_cache import PrefixCache
from engines.mpi.scheduler.sequence import Sequence
from tests.engines.mpi.cache.allocator_operations import make_sequence
from tests.engines.mpi.fakes import make_request
from tests.engines.mpi.scheduler.scheduler_lab import Lab

BLOCK = 4


def _blocks(num_blocks: int = 16) -> PagedBlocks:
    return PagedBlocks(num_blocks, BLOCK, prefix_caching=True)


def _sequence(prompt: str, new: int = 2) -> Sequence:
    """Return a sequence with one token per letter."""
    return make_sequence(prompt, list(prompt.encode()), new)


def _start(blocks: PagedBlocks, prompt: str, new: int = 2) -> Sequence:
    """Admit a sequence. Only pages from the cache are computed."""
    sequence = _sequence(prompt, new)
    assert blocks.admit(sequence, reserve=False)
    blocks.check()
    return sequence


def _finish(blocks: PagedBlocks, sequence: Sequence, cache: bool = True) -> Sequence:
    """Compute all tokens of the sequence."""
    assert blocks.extend(sequence, sequence.num_tokens)
    sequence.num_computed_tokens = sequence.num_tokens
    if cache:
        blocks.cache_full_pages(sequence)
    blocks.check()
    return sequence


def _run(blocks: PagedBlocks, prompt: str) -> list[int]:
    """Run a sequence to its end. Return its block table."""
    sequence = _finish(blocks, _start(blocks, prompt))
    table = sequence.block_table
    blocks.release(sequence)
    blocks.check()
    return table


def _num_found(blocks: PagedBlocks, prompt: str) -> int:
    """Return the number of pages that a new sequence would find."""
    return len(blocks.prefix_cache.find(_sequence(prompt)))


def test_a_prompt_finds_the_full_pages_of_a_shared_prefix() -> None:
    blocks = _blocks()
    table = _run(blocks, "abcdefghijkl+")
    assert blocks.num_cached == 3
    assert blocks.num_used == 0
    second = _start(blocks, "abcdefghiJKL+")
    assert second.block_table == table[:2]
    assert second.num_computed_tokens == 8
    assert blocks.num_cached == 1
    assert _num_found(blocks, "-bcdefghijkl+") == 0
    assert _num_found(blocks, "efghijkl+") == 0, "a page matches only after the same prefix"


@pytest.mark.parametrize(("prompt", "pages"), [("abcdefgh", 1), ("abcdefghi", 2), ("abcd", 0), ("abc", 0)])
def test_the_last_token_is_always_computed(prompt: str, pages: int) -> None:
    blocks = _blocks()
    _run(blocks, "abcdefghijkl+")
    assert _num_found(blocks, prompt) == pages


def test_generated_tokens_are_found_too() -> None:
    blocks = _blocks()
    sequence = _finish(blocks, _start(blocks, "abcdefg", new=5))
    sequence.token_ids += b"hi"
    _finish(blocks, sequence)
    blocks.release(sequence)
    assert _num_found(blocks, "abcdefghij") == 2


def test_the_least_recently_used_pages_are_evicted_suffixes_first() -> None:
    blocks = _blocks(8)
    _run(blocks, "AAAABBBB+")
    _run(blocks, "CCCCDDDDEEEE+")
    blocks.release(_start(blocks, "AAAABBBB+"))  # makes these the most recently used
    assert (blocks.num_free, blocks.num_cached) == (3, 5)
    lone = _start(blocks, "x", new=99)
    for length, found in ((16, 2), (20, 1), (24, 0)):
        assert blocks.extend(lone, length)
        assert _num_found(blocks, "CCCCDDDDEEEE+") == found
        blocks.check()
    assert blocks.num_cached == 2
    assert blocks.extend(lone, 28)
    assert _num_found(blocks, "AAAABBBB+") == 1


def test_found_pages_in_use_need_no_free_blocks() -> None:
    blocks = _blocks(4)
    first = _finish(blocks, _start(blocks, "abcdefghi"))
    assert not blocks.admit(make_sequence("other", [1] * 9, 1), reserve=False)
    assert _start(blocks, "abcdefghi").block_table == first.block_table[:2]


def test_the_first_of_two_copies_of_a_page_is_found() -> None:
    blocks = _blocks()
    first, second = _start(blocks, "abcdefghi+"), _start(blocks, "abcdefghijkl+")
    _finish(blocks, first)
    _finish(blocks, second)
    third = _start(blocks, "abcdefghijklm")
    assert third.block_table == [*first.block_table[:2], second.block_table[2]]
    for sequence in (second, first, third):
        blocks.release(sequence)
        blocks.check()
    assert blocks.num_cached == 3


def test_a_prefix_of_another_sequence_is_not_evicted_before_its_suffix() -> None:
    blocks = _blocks(8)
    first, second = _start(blocks, "AAAABBBB"), _start(blocks, "AAAACCCC")
    for sequence in (first, second):
        _finish(blocks, sequence)
    blocks.release(first)
    blocks.release(second)
    lone = _start(blocks, "x", new=99)
    for length, found in ((24, 2), (28, 1)):
        assert blocks.extend(lone, length)
        assert _num_found(blocks, "AAAABBBB+") == 1
        assert _num_found(blocks, "AAAACCCC+") == found


def _evict_first_page(blocks: PagedBlocks, first: str, rest: str) -> Sequence:
    """Return a running sequence whose first page, in the block of another sequence, was evicted."""
    other, sequence = _start(blocks, first + "+"), _start(blocks, first + rest + "+", new=9)
    _finish(blocks, other)
    _finish(blocks, sequence)
    blocks.release(other)
    blocks._pool.free(blocks.prefix_cache.evict(1))
    blocks.check()
    return sequence


def test_pages_after_an_evicted_page_are_not_found_until_it_is_recomputed() -> None:
    blocks = _blocks()
    sequence = _evict_first_page(blocks, "abcd", "efghijkl")
    assert _num_found(blocks, "abcdefghijkl+") == 0
    table = _run(blocks, "abcdefghijkl+")
    assert not set(table) & set(sequence.block_table)
    assert _num_found(blocks, "abcdefghijkl+") == 3, "the recomputed pages replace the others"
    blocks.release(sequence)
    blocks.check()
    assert _num_found(blocks, "abcdefghijkl+") == 3


def test_pages_after_an_evicted_page_are_not_added_to_the_cache() -> None:
    blocks = _blocks()
    sequence = _evict_first_page(blocks, "abcd", "")
    sequence.token_ids += range(4)
    _finish(blocks, sequence)
    blocks.release(sequence)
    assert blocks.num_cached == 0


def test_a_fork_caches_pages_that_its_source_had_not_cached() -> None:
    blocks = _blocks()
    source = _finish(blocks, _start(blocks, "abcdefghijkl+"), cache=False)
    source.num_computed_tokens = 5
    blocks.cache_full_pages(source)
    source.num_computed_tokens = 13
    child = _start(blocks, "-", new=20)
    child.token_ids = list(source.token_ids)
    assert blocks.fork(source, child, 13) is not None
    blocks.release(source)
    blocks.cache_full_pages(child)
    blocks.check()
    blocks.release(child)
    assert _num_found(blocks, "abcdefghijkl+") == 3


def test_a_fork_of_fewer_tokens_than_are_cached_branches_off_there() -> None:
    blocks = _blocks()
    source = _finish(blocks, _start(blocks, "abcdefghijkl+"))
    child = _start(blocks, "-", new=20)
    child.token_ids = list(b"abcdefghIJKL+")
    assert blocks.fork(source, child, 9) is not None
    _finish(blocks, child)
    assert _num_found(blocks, "abcdefghijkl+") == 3
    assert _num_found(blocks, "abcdefghIJKL+") == 3


def test_a_waiting_head_of_the_queue_looks_up_only_new_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full look-up takes time proportional to the prompt length, and is repeated in every step."""
    lab = Lab(num_blocks=14, max_prefill_tokens=64, prefix_caching=True, policy="max_utilization")
    lab.scheduler.add(make_request("first", range(30), 1))
    lab.run()
    lookups: list[int] = []
    content = PrefixCache._content

    def count(self: PrefixCache, sequence: Sequence, index: int) -> bytes:
        lookups.extend([index] * (sequence.id == "head"))
        return content(self, sequence, index)

    monkeypatch.setattr(PrefixCache, "_content", count)
    lab.scheduler.add(make_request("running", [99] * 20, 12))
    lab.step()
    lab.scheduler.add(make_request("head", range(40), 1))
    lab.step()
    assert lookups == list(range(8)), "seven pages are cached, the next one is not"
    for _ in range(5):
        lookups.clear()
        lab.step()
        lab.blocks.check()
        assert lab.scheduler.num_waiting == 1
        assert len(lookups) <= 1
    assert lab.run().keys() == {"running", "head"}


def test_a_repeated_lookup_sees_new_and_evicted_pages() -> None:
    blocks = _blocks(8)
    _run(blocks, "AAAABBBB+")
    waiting = _sequence("AAAABBBBCCCC+")
    find = blocks.prefix_cache.find
    assert len(find(waiting)) == 2
    table = _run(blocks, "AAAABBBBCCCC+")
    assert find(waiting) == table[:3]
    lone = _start(blocks, "x", new=99)
    for length, found in ((24, 2), (28, 1), (32, 0)):
        assert blocks.extend(lone, length)
        blocks.check()
        assert len(find(waiting)) == found
    blocks.release(lone)
    assert find(waiting) == []


def test_equal_keys_of_different_prefixes_do_not_mix_up_their_suffixes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key of a suffix depends only on the key of its prefix, so comparing tokens and keys would not suffice."""
    monkeypatch.setattr(PrefixCache, "_make_key", lambda self, parent_key, content: parent_key + b"1")
    blocks = _blocks()
    _evict_first_page(blocks, "AAAA", "SSSS")
    _run(blocks, "BBBB+")
    assert _num_found(blocks, "BBBBSSSS+") == 1


@pytest.mark.parametrize(
    ("first", "second", "prompt", "pages"),
    [
        ("ZZZZ+", "AAAABBBBCCCC+", "AAAACCCC+", 1),
        ("AAAAZZZZ+", "AAAABBBBCCCC+", "AAAAZZZZCCCC+", 2),
    ],
)
def test_no_page_is_cached_after_a_colliding_page(
    first: str, second: str, prompt: str, pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages BBBB and ZZZZ have the same key; all other keys differ."""
    collide = [array("i", letters).tobytes() for letters in (b"BBBB", b"ZZZZ")]
    monkeypatch.setattr(
        PrefixCache, "_make_key", lambda self, parent_key, content: b"" if content in collide else content
    )
    blocks = _blocks()
    _run(blocks, first)
    _run(blocks, second)
    assert _num_found(blocks, prompt) == pages


def test_keys_differ_between_processes() -> None:
    keys = [_blocks().prefix_cache._make_key(b"", b"abcd") for _ in range(2)]
    assert keys[0] != keys[1]
    assert [len(key) for key in keys] == [16, 16]


def test_a_step_that_fills_no_page_computes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = _blocks()
    sequence = _finish(blocks, _start(blocks, "abcdefghi", new=8))
    monkeypatch.setattr(PrefixCache, "_make_key", None)
    sequence.token_ids += [1, 2]
    for length in (10, 11):
        assert blocks.extend(sequence, length)
        sequence.num_computed_tokens = length
        blocks.cache_full_pages(sequence)
