"""Plans as tensors: each token's id, position and slot, whoever shares the step, against plain loops."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.layers.rotary import cosines_and_sines, rotary_tables
from engines.models.config import Rotary
from engines.mpi.cache.block_tables import BlockTables
from engines.mpi.runner.batch import Batch, make_batch
from engines.mpi.scheduler.step_plan import WANT_LOGITS, WANT_PROMPT_LOGPROBS, StepPlan
from tests.support.plans import PlanMaker

CPU = torch.device("cpu")
BLOCK_SIZE = 4
NUM_BLOCKS = 64
POSITIONS = 40
ROTARY = Rotary(4)
TABLES = rotary_tables([ROTARY], POSITIONS, CPU)


@dataclass(frozen=True, slots=True)
class Part:
    row: int
    start: int
    count: int
    want: int
    table: tuple[int, ...]


@st.composite
def _parts(draw: st.DrawFn) -> list[Part]:
    rows = draw(st.lists(st.integers(0, 20), min_size=1, max_size=9, unique=True))
    parts = []
    for row in rows:
        count = draw(st.one_of(st.just(1), st.integers(1, 20)))
        start = draw(st.integers(0, POSITIONS - count))
        blocks = -(-(start + count) // BLOCK_SIZE)
        table = draw(st.lists(st.integers(0, NUM_BLOCKS - 1), min_size=blocks, max_size=blocks))
        parts.append(Part(row, start, count, draw(st.integers(0, 3)), tuple(table)))
    return parts


def _make(parts: list[Part]) -> tuple[StepPlan, Batch]:
    """Token j of part i is number 1000 * i + j. The rows' tables have belonged to others before."""
    maker, tables = PlanMaker(BLOCK_SIZE), BlockTables()
    for part in parts:
        tables.apply([part.row, 0, 12, *[NUM_BLOCKS * 1000] * 12])
        maker.begin(part.row, part.table, part.start)
    chunks = {part.row: [1000 * i + j for j in range(part.count)] for i, part in enumerate(parts)}
    plan = maker.plan(chunks, {part.row: part.want for part in parts})
    tables.apply(plan.table_updates)
    return plan, make_batch(plan, tables, TABLES, BLOCK_SIZE)


@given(_parts())
def test_every_token_has_its_place(parts: list[Part]) -> None:
    plan, batch = _make(parts)
    ids = batch.input_ids.tolist()
    assert ids == list(plan.token_ids)
    slots = batch.attention.slot_mapping.tolist()
    assert len(slots) == len(ids)
    for row, token in enumerate(ids):
        part = parts[token // 1000]
        position = part.start + token % 1000
        block = part.table[position // BLOCK_SIZE]
        assert slots[row] == block * BLOCK_SIZE + position % BLOCK_SIZE
        expected = cosines_and_sines(TABLES[ROTARY], torch.tensor([position]))
        for found, one in zip(batch.attention.rotary[ROTARY], expected, strict=True):
            assert torch.equal(found[row], one[0])


@given(_parts())
def test_rows_that_are_wanted_come_in_the_order_of_the_plan(parts: list[Part]) -> None:
    _, batch = _make(parts)
    sampled = batch.input_ids[batch.sample_rows].tolist()
    assert sampled == [1000 * i + p.count - 1 for i, p in enumerate(parts) if p.want & WANT_LOGITS]
    scored = [(i, p) for i, p in enumerate(parts) if p.want & WANT_PROMPT_LOGPROBS]
    assert batch.prompt_lens == tuple(part.count for _, part in scored)
    if batch.prompt_rows is None:
        assert not scored
    else:
        found = batch.input_ids[batch.prompt_rows].tolist()
        assert found == [1000 * i + j for i, part in scored for j in range(part.count)]


@given(_parts())
def test_each_sequence_has_its_own_rows_and_blocks(parts: list[Part]) -> None:
    _, batch = _make(parts)
    row = 0
    for part, found in zip(parts, batch.attention.sequences, strict=True):
        assert (found.first_row, found.query_len, found.kv_len) == (row, part.count, part.start + part.count)
        assert tuple(found.blocks.tolist()) == part.table  # nothing of an earlier owner of a row
        row += part.count


def test_a_plan_that_miscounts_its_tokens_is_an_error() -> None:
    plan, _ = _make([Part(0, 0, 3, 1, (1,))])
    tables = BlockTables()
    tables.apply(plan.table_updates)
    broken = StepPlan(plan.kind, plan.rows, plan.starts, plan.query_lens, plan.wants, plan.token_ids[:2])
    with pytest.raises(ValueError, match="holds 2 tokens and says 3"):
        make_batch(broken, tables, TABLES, BLOCK_SIZE)
