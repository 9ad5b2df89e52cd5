"""Step plans and their encoding for the other ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mpi.scheduler.step_plan import PlanKind, StepPlan

_NUMBER = st.integers(0, 2**31 - 1)
_NUMBERS = st.lists(_NUMBER, max_size=8)


@st.composite
def _plans(draw: st.DrawFn) -> StepPlan:
    count = draw(st.integers(0, 6))
    query_lens = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    each = st.lists(_NUMBER, min_size=count, max_size=count)
    tokens = st.lists(_NUMBER, min_size=sum(query_lens), max_size=sum(query_lens))
    wants = st.lists(st.integers(0, 3), min_size=count, max_size=count)
    kind = draw(st.sampled_from(PlanKind))
    lists = draw(st.tuples(each, each, st.just(query_lens), wants, tokens, _NUMBERS, _NUMBERS))
    return StepPlan(kind, *lists)


def _lists(plan: StepPlan) -> list[list[int]]:
    names = ("rows", "starts", "query_lens", "wants", "token_ids", "table_updates", "copies")
    return [list(getattr(plan, name)) for name in names]


@given(_plans())
def test_a_plan_survives_encoding(plan: StepPlan) -> None:
    copy = StepPlan.decode(plan.encode())
    assert copy.kind is plan.kind
    assert _lists(copy) == _lists(plan)


@given(_plans(), st.data())
def test_parts_of_a_plan_have_its_tokens_without_state_changes(plan: StepPlan, data: st.DataObject) -> None:
    middle = data.draw(st.integers(0, len(plan.rows)))
    parts = plan.part(0, middle), plan.part(middle, len(plan.rows))
    for part in parts:
        assert part.num_tokens == sum(part.query_lens)
        assert not (*part.table_updates, *part.copies)
    joined = [first + second for first, second in zip(*map(_lists, parts), strict=True)]
    assert joined[:5] == _lists(plan)[:5]


@pytest.mark.parametrize("kind", list(PlanKind))
def test_a_plan_without_sequences_is_small(kind: PlanKind) -> None:
    assert len(StepPlan(kind).encode()) == 8 * 4


def test_the_size_of_a_decode_plan_does_not_depend_on_sequence_lengths() -> None:
    def size(length: int) -> int:
        rows = list(range(256))
        ones = [1] * 256
        return len(StepPlan(PlanKind.STEP, rows, [length] * 256, ones, ones, [7] * 256).encode())

    assert size(10) == size(100_000) == 4 * (8 + 5 * 256)
