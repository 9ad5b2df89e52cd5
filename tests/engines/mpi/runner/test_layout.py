"""The layout of a step: the sequences and tokens of a plan in the order of computation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mpi.cache.block_tables import BlockTables, table_triples
from engines.mpi.runner.decode_graphs import batch_sizes
from engines.mpi.runner.layout import StepLayout, lay_out
from engines.mpi.scheduler.step_plan import (
    UNKNOWN_TOKEN,
    WANT_LOGITS,
    WANT_NOTHING,
    WANT_PROMPT_LOGPROBS,
    PlanKind,
    StepPlan,
)


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    lens = draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    rows = draw(st.lists(st.integers(0, 40), min_size=len(lens), max_size=len(lens), unique=True))
    starts = draw(st.lists(st.integers(0, 99), min_size=len(lens), max_size=len(lens)))
    wants = draw(
        st.lists(
            st.sampled_from([WANT_NOTHING, WANT_LOGITS, WANT_LOGITS | WANT_PROMPT_LOGPROBS]),
            min_size=len(lens),
            max_size=len(lens),
        )
    )
    tokens = draw(st.lists(st.integers(UNKNOWN_TOKEN, 50), min_size=sum(lens), max_size=sum(lens)))
    return StepPlan(PlanKind.STEP, rows, starts, lens, wants, tokens)


layouts = plans().map(lambda plan: (plan, lay_out(plan)))


@given(layouts)
def test_every_sequence_keeps_its_tokens_and_single_tokens_come_first(
    plan_and_layout: tuple[StepPlan, StepLayout],
) -> None:
    plan, layout = plan_and_layout
    lens = np.diff(layout.cu_seqlens_q)
    assert (lens[: layout.num_singles] == 1).all()
    assert (lens[layout.num_singles :] > 1).all()
    assert layout.max_query_len == max((length for length in plan.query_lens if length > 1), default=0)
    plan_tokens, at = {}, 0
    for row, length in zip(plan.rows, plan.query_lens, strict=True):
        plan_tokens[row] = list(plan.token_ids[at : at + length])
        at += length
    starts = dict(zip(plan.rows, plan.starts, strict=True))
    for i, row in enumerate(layout.rows.tolist()):
        first, last = layout.cu_seqlens_q[i : i + 2]
        assert layout.token_ids[first:last].tolist() == plan_tokens[row]
        assert layout.starts[i] == starts[row]
        assert (layout.owners[first:last] == i).all()
    wanted = list(zip(plan.rows, plan.wants, strict=True))
    assert layout.rows[layout.sampled].tolist() == [row for row, want in wanted if want & WANT_LOGITS]
    assert layout.rows[layout.scored].tolist() == [row for row, want in wanted if want & WANT_PROMPT_LOGPROBS]


@given(layouts)
def test_tokens_have_positions_and_slots_and_outputs_keep_the_order_of_the_plan(
    plan_and_layout: tuple[StepPlan, StepLayout],
) -> None:
    plan, layout = plan_and_layout
    tables = BlockTables()
    for row in plan.rows:
        tables.apply([row, 0, 30, *range(100 * row, 100 * row + 30)])
    positions, slots = layout.positions.tolist(), layout.slots(tables.entries, 4).tolist()
    found: dict[int, list[int]] = {row: [] for row in plan.rows}
    for owner, position, slot in zip(layout.owners, positions, slots, strict=True):
        row = int(layout.rows[owner])
        assert slot == (100 * row + position // 4) * 4 + position % 4
        found[row].append(position)
    for row, start, count in zip(plan.rows, plan.starts, plan.query_lens, strict=True):
        assert found[row] == list(range(start, start + count))
    parts = list(zip(plan.rows, plan.starts, plan.query_lens, plan.wants, strict=True))
    tokens = list(zip(layout.rows[layout.owners].tolist(), positions, strict=True))
    places = [tokens[i] for i in layout.wanted_rows]
    last = [(row, start + count - 1) for row, start, count, want in parts if want & WANT_LOGITS]
    assert [places[i] for i in layout.last_rows] == last
    scored = [part for part in parts if part[3] & WANT_PROMPT_LOGPROBS]
    assert [[places[i] for i in rows] for rows in layout.scored_ranges] == [
        [(row, start + j) for j in range(count)] for row, start, count, _ in scored
    ]
    wanted = {*last, *((row, start + j) for row, start, count, _ in scored for j in range(count))}
    assert len(places) == max(1, len(wanted)), "no other row is computed to the end"


def test_a_plan_with_a_wrong_number_of_tokens_raises() -> None:
    with pytest.raises(ValueError, match="has 2 tokens but declares 3"):
        lay_out(StepPlan(PlanKind.STEP, [0], [0], [3], [WANT_LOGITS], [1, 2]))


def test_table_updates_become_one_triple_per_entry() -> None:
    triples = table_triples([3, 2, 2, 70, 71, 0, 0, 1, 9])
    assert triples.tolist() == [[3, 2, 70], [3, 3, 71], [0, 0, 9]]
    assert table_triples([]).shape == (0, 3)


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 64, 256, 300, 1000])
def test_graph_sizes_limit_the_padding_of_a_batch(largest: int) -> None:
    sizes = batch_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    for count in range(1, largest + 1):
        size = next(size for size in sizes if size >= count)
        assert size - count < max(4, 8 if count <= 256 else 16)
