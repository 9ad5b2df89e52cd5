from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from lmi_kernels.attention.grouped_plan import (
    KEY_TILE,
    MIN_KEYS,
    QUERY_TILE,
    AttentionGroup,
    GroupLimits,
    KvGather,
    KvView,
    decode_order,
    plan_chunk,
    plan_decodes,
)
from tests.kernels.layouts import Layout, layouts
from tests.support.examples import examples

KV_HEADS = 2


def _padded(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size) * block_size


def _ordered_singles(layout: Layout) -> tuple[list[int], list[list[int]]]:
    lens = layout.seq_lens[: layout.num_singles]
    tables = layout.block_tables[: layout.num_singles]
    order = decode_order(lens, tables, layout.contiguous)
    assert sorted(order) == list(range(len(lens)))
    return [lens[i] for i in order], [tables[i] for i in order]


def _slots_seen(group: AttentionGroup, index: int, block_size: int) -> list[int]:
    """The pool's slots that sequence `index` of the group attends to, in order, masked ones included."""
    if isinstance(group.source, KvView):
        first = group.source.first_slot + index * group.source.stride
        return list(range(first, first + group.kv_len))
    blocks = _blocks_of(group.source, group.num_seqs)[index]
    return [block * block_size + offset for block in blocks for offset in range(block_size)]


def _blocks_of(source: KvGather, num_seqs: int) -> list[list[int]]:
    """Each sequence's blocks; the pages of values and of other heads must be the same blocks, further on."""
    pages = source.pages.view(2, num_seqs, KV_HEADS, -1)
    blocks = pages[0, :, 0]
    distance = int(pages[0, 0, 1, 0] - pages[0, 0, 0, 0])
    for half in range(2):
        for head in range(KV_HEADS):
            assert torch.equal(pages[half, :, head], blocks + (half * KV_HEADS + head) * distance)
    found: list[list[int]] = blocks.tolist()
    return found


def _slots_of(table: list[int], seq_len: int, block_size: int) -> list[int]:
    return [table[p // block_size] * block_size + p % block_size for p in range(seq_len)]


@examples(200)
@given(layouts())
def test_every_single_token_is_in_one_group_that_sees_its_keys(layout: Layout) -> None:
    lens, tables = _ordered_singles(layout)
    groups = plan_decodes(lens, tables, layout.limits(KV_HEADS), layout.contiguous)
    row = 0
    for group in groups:
        assert group.first_row == row
        assert group.query_len == 1
        members = range(row, row + group.num_seqs)
        for i in members:
            seen = _slots_seen(group, i - row, layout.block_size)
            assert len(seen) == group.kv_len
            assert all(0 <= slot < layout.limits(KV_HEADS).num_slots for slot in seen)
            assert seen[: lens[i]] == _slots_of(tables[i], lens[i], layout.block_size)
            visible = torch.zeros(group.kv_len) if group.mask is None else group.mask[i - row, 0, 0]
            assert visible.tolist() == [0.0] * lens[i] + [-math.inf] * (group.kv_len - lens[i])
        row += group.num_seqs
    assert row == len(lens)


@examples(200)
@given(layouts())
def test_groups_keep_their_limits(layout: Layout) -> None:
    lens, tables = _ordered_singles(layout)
    for group in plan_decodes(lens, tables, layout.limits(KV_HEADS), layout.contiguous):
        padded = [
            _padded(length, layout.block_size)
            for length in lens[group.first_row : group.first_row + group.num_seqs]
        ]
        assert group.num_seqs == 1 or group.num_seqs * max(padded) <= layout.max_keys
        # Keys behind the mask are work for nothing: never more than about half.
        assert max(padded) <= 2 * min(padded)
        longest = max(lens[group.first_row : group.first_row + group.num_seqs])
        _check_keys(group, longest, layout)
        if not layout.contiguous and group.num_seqs > 1:
            assert isinstance(group.source, KvGather)


def _check_keys(group: AttentionGroup, longest: int, layout: Layout) -> None:
    """As many keys as the longest sequence needs, few more, and no tile with fewer than MKL gives its usual kernels."""
    step = 1 if isinstance(group.source, KvView) else layout.block_size
    needed = _padded(longest, step)
    assert needed <= group.kv_len < needed + max(MIN_KEYS, step)
    assert not 0 < group.kv_len % KEY_TILE < MIN_KEYS
    assert group.kv_len == needed or 0 < needed % KEY_TILE < MIN_KEYS
    if layout.contiguous and group.num_seqs > 1:
        assert isinstance(group.source, KvView)


@examples(200)
@given(layouts(), st.integers(0, 50))
def test_a_chunk_sees_its_past_and_itself(layout: Layout, first_row: int) -> None:
    chunks = range(layout.num_singles, len(layout.seq_lens))
    for i in chunks:
        seq_len, query_len, table = layout.seq_lens[i], layout.query_lens[i], layout.block_tables[i]
        group = plan_chunk(first_row, query_len, seq_len, table, layout.limits(KV_HEADS))
        assert (group.first_row, group.num_seqs, group.query_len) == (first_row, 1, query_len)
        _check_keys(group, seq_len, layout)
        seen = _slots_seen(group, 0, layout.block_size)
        assert len(seen) == group.kv_len
        assert all(0 <= slot < layout.limits(KV_HEADS).num_slots for slot in seen)
        assert seen[:seq_len] == _slots_of(table, seq_len, layout.block_size)
        assert group.first_position == seq_len - query_len
        tile = min(query_len, QUERY_TILE)
        assert group.mask is not None
        assert group.mask.shape == (tile, 1, tile + MIN_KEYS)
        for query, row in enumerate(group.mask[:, 0].tolist()):
            assert row == [0.0] * (query + 1) + [-math.inf] * (tile + MIN_KEYS - query - 1)


def test_a_run_at_the_pools_end_is_copied_where_a_view_would_leave_it() -> None:
    limits = GroupLimits(block_size=4, num_blocks=6, num_kv_heads=KV_HEADS, max_keys=1000)
    (group,) = plan_decodes([7], [[4, 5]], limits, True)
    assert isinstance(group.source, KvGather)
    assert _blocks_of(group.source, 1) == [[4, 5, 4, 4]]
    assert group.kv_len == MIN_KEYS


def test_equal_runs_at_equal_distances_share_one_view() -> None:
    limits = GroupLimits(block_size=4, num_blocks=16, num_kv_heads=KV_HEADS, max_keys=1000)
    tables = [[0, 1, 2], [5, 6, 7], [10, 11, 12]]
    (group,) = plan_decodes([9, 12, 10], tables, limits, True)
    assert group.source == KvView(first_slot=0, stride=20)
    assert group.kv_len == MIN_KEYS


def test_a_view_that_would_leave_the_pool_is_split() -> None:
    # The last sequence is short and at the pool's very end: 12 keys from its start do not exist.
    limits = GroupLimits(block_size=4, num_blocks=6, num_kv_heads=KV_HEADS, max_keys=1000)
    groups = plan_decodes([12, 7], [[0, 1, 2], [4, 5]], limits, True)
    assert [group.num_seqs for group in groups] == [1, 1]


def test_uneven_distances_start_another_view() -> None:
    limits = GroupLimits(block_size=4, num_blocks=25, num_kv_heads=KV_HEADS, max_keys=1000)
    groups = plan_decodes([4, 4, 4, 4], [[0], [2], [4], [5]], limits, True)
    assert [group.num_seqs for group in groups] == [3, 1]


def test_a_lone_paged_sequence_on_consecutive_blocks_is_not_copied() -> None:
    limits = GroupLimits(block_size=4, num_blocks=25, num_kv_heads=KV_HEADS, max_keys=1000)
    (group,) = plan_decodes([9], [[3, 4, 5, 17]], limits, False)
    assert group.source == KvView(first_slot=12, stride=0)


def test_paged_sequences_of_like_length_share_a_gather() -> None:
    limits = GroupLimits(block_size=4, num_blocks=25, num_kv_heads=KV_HEADS, max_keys=1000)
    (group,) = plan_decodes([9, 5], [[7, 3, 9], [1, 8]], limits, False)
    assert isinstance(group.source, KvGather)
    first, second = _blocks_of(group.source, 2)
    assert first == [7, 3, 9, 7]
    assert second[:2] == [1, 8]
    assert len(second) == 4


def test_decode_order_groups_by_place_or_by_length() -> None:
    tables = [[8], [0], [4]]
    assert decode_order([1, 2, 3], tables, contiguous=True) == [1, 2, 0]
    assert decode_order([2, 1, 3], tables, contiguous=False) == [2, 0, 1]
