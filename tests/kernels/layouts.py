"""Random places of sequences in a KV pool, for hypothesis."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import strategies as st

from lmi_kernels.attention.grouped_plan import GroupLimits


@dataclass(frozen=True)
class Layout:
    """Sequences of a step and where their blocks are."""

    block_size: int
    num_blocks: int
    max_keys: int
    contiguous: bool
    seq_lens: list[int]
    query_lens: list[int]
    """Of the first `num_singles` sequences 1."""
    num_singles: int
    block_tables: list[list[int]]

    def limits(self, num_kv_heads: int) -> GroupLimits:
        return GroupLimits(self.block_size, self.num_blocks, num_kv_heads, self.max_keys)


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


@st.composite
def layouts(draw: st.DrawFn, max_len: int = 40) -> Layout:
    """Single tokens and chunks over shuffled blocks, or over runs of blocks with equal or random distances."""
    block_size = draw(st.sampled_from([1, 2, 3, 4, 16]))
    contiguous = draw(st.booleans())
    singles = draw(st.lists(st.integers(1, max_len), max_size=9))
    before = st.just(0) | st.integers(1, max_len)  # a sequence's first chunk is a case of its own
    chunks = draw(st.lists(st.tuples(before, st.integers(2, 20)), max_size=2, min_size=not singles))
    seq_lens = singles + [computed + new for computed, new in chunks]
    query_lens = [1] * len(singles) + [new for _, new in chunks]
    # Blocks beyond what the keys need: a contiguous run covers the sequence's worst case.
    spare = draw(st.integers(0, 2))
    needed = [_blocks(length, block_size) + spare for length in seq_lens]
    if contiguous and draw(st.booleans()):
        needed = [max(needed)] * len(needed)  # equal runs side by side: all of them fit one view
    tables, num_blocks = (_runs if contiguous else _shuffled)(draw, needed)
    return Layout(
        block_size=block_size,
        num_blocks=num_blocks,
        max_keys=draw(st.sampled_from([1, 16, 64, 100_000])),
        contiguous=contiguous,
        seq_lens=seq_lens,
        query_lens=query_lens,
        num_singles=len(singles),
        block_tables=tables,
    )


def _runs(draw: st.DrawFn, needed: list[int]) -> tuple[list[list[int]], int]:
    order = draw(st.permutations(range(len(needed))))
    gaps = draw(st.sampled_from([0, 0, 1, 3]))
    tables: list[list[int]] = [[] for _ in needed]
    start = draw(st.integers(0, 2))
    for i in order:
        tables[i] = list(range(start, start + needed[i]))
        start += needed[i] + (draw(st.integers(0, gaps)) if gaps else 0)
    return tables, start + draw(st.integers(0, 1))


def _shuffled(draw: st.DrawFn, needed: list[int]) -> tuple[list[list[int]], int]:
    total = sum(needed) + draw(st.integers(0, 3))
    blocks = list(range(total))
    # In order, every table is a run of blocks: a lone sequence is then read without a copy.
    if draw(st.integers(0, 3)):
        # hypothesis' own permutations are mostly close to the identity.
        random.Random(draw(st.integers(0, 2**32 - 1))).shuffle(blocks)
    tables = []
    for count in needed:
        tables.append(blocks[:count])
        blocks = blocks[count:]
    return tables, total
