"""The prefix cache, through the block manager: who finds which pages, and which of them are evicted."""

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


def _cache(blocks: PagedBlocks) -> PrefixCache:
    assert blocks.prefix_cache is not None
    return blocks.prefix_cache


def _start(blocks: PagedBlocks, prompt: str, tenant: str = "", new: int = 2) -> Sequence:
    """Admitted, nothing computed yet but what was found. One token a letter."""
    sequence = make_sequence(prompt, [ord(letter) for letter in prompt], new, tenant)
    assert blocks.admit(sequence, reserve=False)
    blocks.check()
    return sequence


def _finish(blocks: PagedBlocks, sequence: Sequence, keep: bool = True) -> Sequence:
    """All its tokens computed."""
    assert blocks.extend(sequence, sequence.num_tokens)
    sequence.num_computed_tokens = sequence.num_tokens
    if keep:
        blocks.cache_full_pages(sequence)
    blocks.check()
    return sequence


def _run(blocks: PagedBlocks, prompt: str, tenant: str = "") -> list[int]:
    """From start to end; returns its blocks."""
    sequence = _finish(blocks, _start(blocks, prompt, tenant))
    table = sequence.block_table
    blocks.release(sequence)
    blocks.check()
    return table


def _num_found(blocks: PagedBlocks, prompt: str, tenant: str = "") -> int:
    """Pages that would be found now."""
    return len(_cache(blocks).find(make_sequence(prompt, [ord(letter) for letter in prompt], 2, tenant)))


def test_a_prompt_finds_the_full_pages_that_it_shares_from_the_start() -> None:
    blocks = _blocks()
    table = _run(blocks, "abcdefghijkl+")
    assert blocks.num_cached == 3
    assert blocks.num_used == 0
    second = _start(blocks, "abcdefghiJKL+")
    assert second.block_table == table[:2]
    assert second.num_computed_tokens == 8
    assert blocks.num_cached == 1
    assert _num_found(blocks, "-bcdefghijkl+") == 0
    assert _num_found(blocks, "efghijkl+") == 0, "a page counts only after the same pages"


@pytest.mark.parametrize(("prompt", "pages"), [("abcdefgh", 1), ("abcdefghi", 2), ("abcd", 0), ("abc", 0)])
def test_the_last_token_is_left_to_be_computed(prompt: str, pages: int) -> None:
    blocks = _blocks()
    _run(blocks, "abcdefghijkl+")
    assert _num_found(blocks, prompt) == pages


def test_pages_are_found_while_their_sequence_still_runs() -> None:
    blocks = _blocks()
    first = _finish(blocks, _start(blocks, "abcdefghi"))
    second = _start(blocks, "abcdefghi")
    assert second.block_table == first.block_table[:2]
    assert blocks.num_used == 3
    blocks.release(first)
    assert blocks.num_used == 2
    blocks.check()


def test_generated_tokens_are_found_too() -> None:
    blocks = _blocks()
    sequence = _finish(blocks, _start(blocks, "abcdefg", new=5))
    sequence.token_ids += [ord(letter) for letter in "hi"]
    _finish(blocks, sequence)
    blocks.release(sequence)
    assert _num_found(blocks, "abcdefghij") == 2


def test_what_was_not_kept_is_not_found() -> None:
    blocks = _blocks()
    sequence = _finish(blocks, _start(blocks, "abcdefghi"), keep=False)
    assert _num_found(blocks, "abcdefghi") == 0
    blocks.release(sequence)
    assert blocks.num_free == 16


def test_what_is_not_computed_yet_is_not_found() -> None:
    blocks = _blocks()
    sequence = _start(blocks, "abcdefghi")
    assert blocks.extend(sequence, 9)
    sequence.num_computed_tokens = 7
    blocks.cache_full_pages(sequence)
    assert _num_found(blocks, "abcdefghi") == 1


def test_no_page_is_found_by_another_tenant() -> None:
    blocks = _blocks()
    _run(blocks, "abcdefghi", "ann")
    assert _num_found(blocks, "abcdefghi", "bob") == 0
    assert _num_found(blocks, "abcdefghi") == 0
    assert _num_found(blocks, "abcdefghi", "ann") == 2


def test_one_that_wants_its_prompts_logprobs_computes_it_all_and_others_may_find_it() -> None:
    blocks = _blocks()
    _run(blocks, "abcdefghi")
    sequence = make_sequence("a", [ord(letter) for letter in "abcdefghi"], 2, prompt_logprobs=0)
    assert blocks.admit(sequence, reserve=True)
    assert sequence.block_table == []
    _finish(blocks, sequence)
    blocks.release(sequence)
    assert _num_found(blocks, "abcdefghi") == 2


def test_a_preempted_sequence_finds_its_own_pages_again() -> None:
    blocks = _blocks()
    sequence = _finish(blocks, _start(blocks, "abcdefghi", new=4))
    table = sequence.block_table
    sequence.token_ids.append(1)
    blocks.release(sequence)
    assert blocks.admit(sequence, reserve=False)
    assert sequence.block_table == table[:2]


def test_the_least_recently_used_pages_are_evicted_and_suffixes_before_prefixes() -> None:
    blocks = _blocks(8)
    _run(blocks, "AAAABBBB+")
    _run(blocks, "CCCCDDDDEEEE+")
    blocks.release(_start(blocks, "AAAABBBB+"))  # So these are used once more.
    assert (blocks.num_free, blocks.num_cached) == (3, 5)
    lone = _start(blocks, "x", new=99)
    for length, found in ((16, 2), (20, 1), (24, 0)):
        assert blocks.extend(lone, length)
        assert _num_found(blocks, "CCCCDDDDEEEE+") == found
        blocks.check()
    assert blocks.num_cached == 2
    assert blocks.extend(lone, 28)
    assert _num_found(blocks, "AAAABBBB+") == 1


def test_pages_in_use_are_not_evicted() -> None:
    blocks = _blocks(4)
    first = _finish(blocks, _start(blocks, "abcdefghi"))
    assert not blocks.admit(make_sequence("x", [1] * 5, 1), reserve=False)
    assert _num_found(blocks, "abcdefghi") == 2
    blocks.release(first)
    assert blocks.admit(make_sequence("x", [1] * 9, 1), reserve=False)


def test_found_pages_that_others_hold_need_no_room() -> None:
    blocks = _blocks(4)
    first = _finish(blocks, _start(blocks, "abcdefghi"))
    assert not blocks.admit(make_sequence("other", [1] * 9, 1), reserve=False)
    assert _start(blocks, "abcdefghi").block_table == first.block_table[:2]


def test_found_pages_that_nobody_held_count_against_what_is_promised() -> None:
    blocks = _blocks(4)
    _run(blocks, "abcdefghi")
    promised = make_sequence("promised", [1], 12)
    assert blocks.admit(promised, reserve=True)
    assert not blocks.admit(make_sequence("again", list(b"abcdefghi"), 1), reserve=False)
    blocks.release(promised)
    assert blocks.admit(make_sequence("again", list(b"abcdefghi"), 1), reserve=False)


def test_of_two_who_compute_the_same_page_the_first_ones_is_found() -> None:
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


def test_a_prefix_computed_by_another_is_not_evicted_before_its_suffix() -> None:
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
    """A running sequence whose first page has gone from the cache: it was in the block of another that has ended."""
    other, sequence = _start(blocks, first + "+"), _start(blocks, first + rest + "+", new=9)
    _finish(blocks, other)
    _finish(blocks, sequence)
    blocks.release(other)
    blocks._pool.free(_cache(blocks).evict(1))
    blocks.check()
    return sequence


def test_what_follows_an_evicted_page_is_not_found_until_that_is_computed_again() -> None:
    blocks = _blocks()
    sequence = _evict_first_page(blocks, "abcd", "efghijkl")
    assert _num_found(blocks, "abcdefghijkl+") == 0
    table = _run(blocks, "abcdefghijkl+")
    assert not set(table) & set(sequence.block_table)
    assert _num_found(blocks, "abcdefghijkl+") == 3, "the pages that were computed again replace the others"
    blocks.release(sequence)
    blocks.check()
    assert _num_found(blocks, "abcdefghijkl+") == 3


def test_a_sequence_whose_last_page_has_gone_adds_none_that_nobody_could_find() -> None:
    blocks = _blocks()
    sequence = _evict_first_page(blocks, "abcd", "")
    sequence.token_ids += range(4)
    _finish(blocks, sequence)
    blocks.release(sequence)
    assert blocks.num_cached == 0


def test_a_fork_offers_what_its_source_had_not_yet() -> None:
    blocks = _blocks()
    source = _finish(blocks, _start(blocks, "abcdefghijkl+"), keep=False)
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


def test_a_fork_of_less_than_what_is_kept_goes_on_from_there() -> None:
    blocks = _blocks()
    source = _finish(blocks, _start(blocks, "abcdefghijkl+"))
    child = _start(blocks, "-", new=20)
    child.token_ids = [ord(letter) for letter in "abcdefghIJKL+"]
    assert blocks.fork(source, child, 9) is not None
    _finish(blocks, child)
    assert _num_found(blocks, "abcdefghijkl+") == 3
    assert _num_found(blocks, "abcdefghIJKL+") == 3


def _letters(letters: str) -> list[int]:
    return [ord(letter) for letter in letters]


def test_while_the_head_of_the_queue_waits_only_news_of_the_cache_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look-up costs as much as the prompt is long, and is repeated in every step."""
    lab = Lab(num_blocks=14, max_prefill_tokens=64, prefix_caching=True, policy="max_utilization")
    lab.scheduler.add(make_request("first", range(30), 1))
    lab.run()
    looks: list[int] = []
    content = PrefixCache._content

    def count(self: PrefixCache, sequence: Sequence, index: int) -> bytes:
        looks.extend([index] * (sequence.id == "head"))
        return content(self, sequence, index)

    monkeypatch.setattr(PrefixCache, "_content", count)
    lab.scheduler.add(make_request("running", [99] * 20, 12))
    lab.step()
    lab.scheduler.add(make_request("head", range(40), 1))
    lab.step()
    assert looks == list(range(8)), "seven pages are there, and the next one is not"
    for _ in range(5):
        looks.clear()
        lab.step()
        lab.blocks.check()
        assert lab.scheduler.num_waiting == 1
        assert len(looks) <= 1
    assert lab.run().keys() == {"running", "head"}


def test_a_repeated_look_up_follows_the_pages_that_come_and_go() -> None:
    blocks = _blocks(8)
    _run(blocks, "AAAABBBB+")
    waiting = make_sequence("w", _letters("AAAABBBBCCCC+"), 2)
    find = _cache(blocks).find
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


def test_keys_that_collide_find_no_wrong_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixCache, "_make_key", lambda self, parent_key, content: b"1")
    blocks = _blocks()
    _run(blocks, "abcdefghijkl+")
    assert _num_found(blocks, "abcdefghijkl+", "ann") == 0
    assert _num_found(blocks, "efghijkl+") == 0
    assert _num_found(blocks, "abcdefghijkl+") == 1


def test_equal_keys_of_different_prefixes_do_not_mix_up_their_suffixes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key of a suffix depends on its prefix's key only: comparing tokens and keys would not be enough."""
    monkeypatch.setattr(PrefixCache, "_make_key", lambda self, parent_key, content: parent_key + b"1")
    blocks = _blocks()
    _evict_first_page(blocks, "AAAA", "SSSS")
    _run(blocks, "BBBB+")
    assert _num_found(blocks, "BBBBSSSS+") == 1


@pytest.mark.parametrize(
    ("before", "then", "prompt", "pages"),
    [
        ("ZZZZ+", "AAAABBBBCCCC+", "AAAACCCC+", 1),
        ("AAAAZZZZ+", "AAAABBBBCCCC+", "AAAAZZZZCCCC+", 2),
    ],
)
def test_nothing_is_chained_past_a_page_that_collided(
    before: str, then: str, prompt: str, pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages BBBB and ZZZZ have one key, any other has its own."""
    collide = [_content(letter * 4) for letter in "BZ"]
    monkeypatch.setattr(
        PrefixCache, "_make_key", lambda self, parent_key, content: b"" if content in collide else content
    )
    blocks = _blocks()
    _run(blocks, before)
    _run(blocks, then)
    assert _num_found(blocks, prompt) == pages


def _content(letters: str) -> bytes:
    return array("i", [ord(letter) for letter in letters]).tobytes()


def test_a_secret_makes_keys_differ_between_processes() -> None:
    keys = [_cache(_blocks())._make_key(b"", b"abcd") for _ in range(2)]
    assert keys[0] != keys[1]
    assert [len(key) for key in keys] == [16, 16]


def test_a_step_that_fills_no_page_touches_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = _blocks()
    sequence = _finish(blocks, _start(blocks, "abcdefghi", new=8))
    monkeypatch.setattr(PrefixCache, "_make_key", None)
    sequence.token_ids += [1, 2]
    for length in (10, 11):
        assert blocks.extend(sequence, length)
        sequence.num_computed_tokens = length
        blocks.cache_full_pages(sequence)
