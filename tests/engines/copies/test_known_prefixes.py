"""`KnownPrefixes` against a search over all prompts that each copy received."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from engines.copies.known_prefixes import KnownPrefixes

BLOCK = 4
PROMPTS = st.lists(st.integers(0, 1), max_size=20)


def shared_tokens(one: list[int], other: list[int]) -> int:
    """Length of the common prefix in whole blocks."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) // BLOCK * BLOCK


@given(routed_prompts=st.lists(st.tuples(PROMPTS, st.integers(0, 2))), prompt=PROMPTS)
def test_the_longest_prefix_of_each_copy_is_found(
    routed_prompts: list[tuple[list[int], int]], prompt: list[int]
) -> None:
    known = KnownPrefixes(3, block_tokens=BLOCK)
    for tokens, copy in routed_prompts:
        known.add(known.block_hashes("", tokens), copy)
    expected = [
        max((shared_tokens(prompt, tokens) for tokens, owner in routed_prompts if owner == copy), default=0)
        for copy in range(3)
    ]
    assert known.matched_tokens(known.block_hashes("", prompt)) == expected


def test_tenants_do_not_share_prefixes() -> None:
    known = KnownPrefixes(1, block_tokens=BLOCK)
    known.add(known.block_hashes("a", range(8)), 0)
    assert known.matched_tokens(known.block_hashes("a", range(8))) == [8]
    assert known.matched_tokens(known.block_hashes("b", range(8))) == [0]


def test_a_block_matches_only_after_the_same_prefix() -> None:
    known = KnownPrefixes(1, block_tokens=2)
    known.add(known.block_hashes("", [1, 2, 3, 4]), 0)
    assert known.matched_tokens(known.block_hashes("", [3, 4])) == [0]
    assert known.matched_tokens(known.block_hashes("", [1, 2, 9, 9, 3, 4])) == [2]


def test_memory_is_bounded_and_first_blocks_are_evicted_last() -> None:
    known = KnownPrefixes(1, block_tokens=1, max_blocks=10)
    known.add(known.block_hashes("", range(100, 108)), 0)
    known.add(known.block_hashes("", range(200, 205)), 0)
    assert len(known) == 10
    assert known.matched_tokens(known.block_hashes("", range(200, 205))) == [5]
    assert known.matched_tokens(known.block_hashes("", range(100, 108))) == [5]
    known.add(known.block_hashes("", range(1000)), 0)
    assert len(known) == 10


def test_forget_removes_the_prefixes_of_a_copy() -> None:
    known = KnownPrefixes(2, block_tokens=1)
    hashes = known.block_hashes("", [1, 2])
    known.add(hashes, 0)
    known.add(hashes[:1], 1)
    known.forget(0)
    assert known.matched_tokens(hashes) == [0, 1]
    assert len(known) == 1
