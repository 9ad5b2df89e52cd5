"""Plans cross to the other ranks as bytes and come out the same."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mpi.step_plan import PlanKind, ScheduledSequence, StepPlan

_NUMBERS = st.lists(st.integers(0, 2**40), max_size=12).map(tuple)
_SEQUENCES = st.builds(
    ScheduledSequence,
    token_ids=_NUMBERS,
    start=st.integers(0, 2**40),
    block_table=_NUMBERS,
    sample=st.booleans(),
)
_PLANS = st.builds(
    StepPlan,
    kind=st.sampled_from(PlanKind),
    sequences=st.lists(_SEQUENCES, max_size=6).map(tuple),
    scrub_blocks=_NUMBERS,
)


@given(_PLANS)
def test_a_plan_survives_the_wire(plan: StepPlan) -> None:
    assert StepPlan.decode(plan.encode()) == plan


@given(_PLANS)
def test_num_tokens_counts_all_sequences(plan: StepPlan) -> None:
    assert plan.num_tokens == sum(len(sequence.token_ids) for sequence in plan.sequences)


@pytest.mark.parametrize("kind", list(PlanKind))
def test_a_plan_without_sequences_is_small(kind: PlanKind) -> None:
    assert len(StepPlan(kind).encode()) == 3 * 8


def test_a_plan_holds_plain_64_bit_numbers() -> None:
    planned = ScheduledSequence(token_ids=(7, 8), start=3, block_table=(5,), sample=True)
    data = StepPlan(PlanKind.STEP, (planned,), (9,)).encode()
    numbers = [int.from_bytes(data[i : i + 8], sys.byteorder) for i in range(0, len(data), 8)]
    assert numbers == [0, 1, 1, 2, 3, 1, 1, 7, 8, 5, 9]
    assert planned.query_len == 2
    assert planned.seq_len == 5
