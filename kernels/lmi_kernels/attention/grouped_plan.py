"""How a step's sequences are grouped for attention: made once a step, used by every layer.

A group is read from the KV pool in one of two ways. A *view*: its sequences' keys start at equal distances, so one
strided view shows them all without a copy. A *gather*: its blocks are copied side by side into a kept buffer.
Groups are small enough that what a gather wrote is still in the processor's cache when attention reads it.

On a CPU the plan also keeps every product inside the shapes at which a row's bits do not depend on what else is
computed with it; see `attention_cpu`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

QUERY_TILE = 64
"""Tokens of a chunk that one product takes on a CPU: 32 calls more often for little, 128 computes more hidden keys."""
KEY_TILE = 192
"""Keys that one product weighs on a CPU, from a sequence's first on. MKL cuts longer sums where their length says (in
halves below 384 keys), and a sum's cuts decide its last bits: so we cut, always in the same places."""
MIN_KEYS = 16
"""MKL takes other kernels below: no product has fewer keys, nor has the last tile."""


@dataclass(frozen=True, slots=True)
class KvView:
    """Sequence i of the group has its first key in slot `first_slot + i * stride`, the others right behind."""

    first_slot: int
    stride: int


@dataclass(frozen=True, slots=True)
class KvGather:
    """The group's blocks in order, the same number a sequence; the short ones repeat a block that the mask hides."""

    pages: torch.Tensor
    """[2 * num_seqs * num_kv_heads * blocks_per_seq], int64: rows of the pool as [2 * num_kv_heads * num_blocks,
    block_size * head_dim], keys before values, then by sequence, head and position. Flat, because gathering whole
    rows is what `index_select` does fastest."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Sequences that one call of scaled dot product attention takes."""

    first_row: int
    """Token rows [first_row, first_row + num_seqs * query_len) of the step."""
    num_seqs: int
    query_len: int
    """1, or more in a group of one sequence: a prefill chunk."""
    kv_len: int
    """Keys a sequence in the tensors that attention sees, those behind the mask included."""
    source: KvView | KvGather
    mask: torch.Tensor | None
    """Added to the scores, -inf hides. Of single tokens: [num_seqs, 1, 1, kv_len], None: all is seen. Of a chunk:
    [t, 1, t + MIN_KEYS], the chunk's t first queries, at most `QUERY_TILE`, over the keys from the first of them on,
    which fits any later tile too."""
    first_position: int
    """Of a chunk's first query; 0 in a group of single tokens."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What may share a group."""

    block_size: int
    num_blocks: int
    """Of the pool: no view reaches beyond."""
    num_kv_heads: int
    max_keys: int
    """num_seqs * kv_len of a group; a single sequence may be longer."""
    batch_invariant: bool = False
    """A step's rows are padded such that dense products have the same bits too (`batch_invariant_rows`); attention's
    always have them on a CPU."""

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size


def decode_order(
    seq_lens: Sequence[int], block_tables: Sequence[Sequence[int]], contiguous: bool
) -> list[int]:
    """The order of single-token sequences in which neighbours group well: by place when contiguous, else by length."""
    if contiguous:
        return sorted(range(len(seq_lens)), key=lambda i: block_tables[i][0])
    return sorted(range(len(seq_lens)), key=lambda i: -seq_lens[i])


def plan_decodes(
    seq_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    limits: GroupLimits,
    contiguous: bool,
) -> list[AttentionGroup]:
    """Group sequences of one query token each, which are the step's first rows, in `decode_order`.

    Args:
        seq_lens: keys of each sequence, the new token's included.
        block_tables: each sequence's blocks in order, at least as many as its keys need.
        contiguous: every block table is a run of consecutive blocks.
    """
    groups: list[AttentionGroup] = []
    start = 0
    while start < len(seq_lens):
        stop = start + 1
        while stop < len(seq_lens) and _fits(seq_lens, block_tables, start, stop, limits, contiguous):
            stop += 1
        tables = block_tables[start:stop]
        groups.append(_decode_group(start, seq_lens[start:stop], tables, limits, contiguous))
        start = stop
    return groups


def plan_chunk(
    first_row: int,
    query_len: int,
    seq_len: int,
    block_table: Sequence[int],
    limits: GroupLimits,
) -> AttentionGroup:
    """The group of one prefill chunk: the last `query_len` of `seq_len` tokens, in rows from `first_row` on."""
    past = seq_len - query_len
    source, kv_len = _source([seq_len], [block_table], limits, False)
    tile = min(query_len, QUERY_TILE)
    mask = torch.full((tile, tile + MIN_KEYS), -math.inf).triu_(1)[:, None, :]
    return AttentionGroup(first_row, 1, query_len, kv_len, source, mask, past)


def _decode_group(
    start: int,
    seq_lens: Sequence[int],
    tables: Sequence[Sequence[int]],
    limits: GroupLimits,
    contiguous: bool,
) -> AttentionGroup:
    source, kv_len = _source(seq_lens, tables, limits, contiguous)
    mask = None
    if min(seq_lens) < kv_len:
        lens = torch.tensor(seq_lens)
        hidden = torch.arange(kv_len) >= lens[:, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)[:, None, None, :]
    return AttentionGroup(start, len(seq_lens), 1, kv_len, source, mask, 0)


def _source(
    seq_lens: Sequence[int],
    tables: Sequence[Sequence[int]],
    limits: GroupLimits,
    contiguous: bool,
) -> tuple[KvView | KvGather, int]:
    """How a group's keys are read, and how many a sequence, at least the longest's."""
    block_size, longest = limits.block_size, max(seq_lens)
    used = _num_blocks(longest, block_size)
    if contiguous or (len(tables) == 1 and _consecutive(tables[0][:used])):
        kv_len = _settled(longest, 1)
        # A lone sequence may stand so near the pool's end that there are not enough keys behind it.
        if tables[-1][0] * block_size + kv_len <= limits.num_slots:
            stride = (tables[1][0] - tables[0][0]) * block_size if len(tables) > 1 else 0
            return KvView(tables[0][0] * block_size, stride), kv_len
    used = _settled(longest, block_size) // block_size
    rows = [[*table[:used], *([table[0]] * (used - len(table)))] for table in tables]
    return _gather(rows, limits), used * block_size


def _settled(num_keys: int, step: int) -> int:
    """The least multiple of `step`, at least `num_keys`, that leaves no tile with fewer than `MIN_KEYS` keys."""
    keys = _padded(num_keys, step)
    while 0 < keys % KEY_TILE < MIN_KEYS:
        keys += step
    return keys


def _gather(tables: Sequence[Sequence[int]], limits: GroupLimits) -> KvGather:
    """`tables`: the blocks of each sequence, all of one length."""
    blocks = torch.tensor(tables, dtype=torch.int64)[None, :, None, :]
    # Row of the pool at which each (keys or values, head) begins.
    starts = torch.arange(2 * limits.num_kv_heads) * limits.num_blocks
    return KvGather((starts.view(2, 1, limits.num_kv_heads, 1) + blocks).flatten())


def _fits(
    seq_lens: Sequence[int],
    tables: Sequence[Sequence[int]],
    start: int,
    stop: int,
    limits: GroupLimits,
    contiguous: bool,
) -> bool:
    """Whether sequence `stop` may join the group [start, stop)."""
    block_size = limits.block_size
    longest = _padded(max(seq_lens[start : stop + 1]), block_size)
    shortest = _padded(min(seq_lens[start : stop + 1]), block_size)
    if longest > 2 * shortest or longest * (stop + 1 - start) > limits.max_keys:
        return False
    if not contiguous:
        return True
    keys = max(longest, _settled(max(seq_lens[start : stop + 1]), 1))
    if tables[stop][0] * block_size + keys > limits.num_slots:
        return False
    # Equal distances: else no single strided view shows them.
    return (
        stop - start < 2 or tables[stop][0] - tables[stop - 1][0] == tables[start + 1][0] - tables[start][0]
    )


def _consecutive(blocks: Sequence[int]) -> bool:
    return all(blocks[i] + 1 == blocks[i + 1] for i in range(len(blocks) - 1))


def _num_blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _padded(num_tokens: int, block_size: int) -> int:
    return _num_blocks(num_tokens, block_size) * block_size
