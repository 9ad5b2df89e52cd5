"""The fcfs and priority policies: random calls against a sorted list."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mpi.scheduler.policies import POLICIES
from engines.mpi.scheduler.policies.base import SchedulingPolicy
from engines.mpi.scheduler.policies.fcfs import FirstComeFirstServed
from engines.mpi.scheduler.policies.priority import Priority
from engines.mpi.scheduler.sequence import Sequence
from tests.engines.mpi.scheduler.policies.builders import admit_head, compute, make_sequence, preempt

_CALLS = st.lists(
    st.tuples(st.sampled_from(["arrive", "arrive", "admit", "leave", "preempt"]), st.integers(0, 99)),
    max_size=80,
)


def _key(policy: SchedulingPolicy, sequence: Sequence) -> tuple[int, int]:
    return (sequence.request.priority if isinstance(policy, Priority) else 0), sequence.number


@pytest.mark.parametrize("kind", [FirstComeFirstServed, Priority])
@given(calls=_CALLS)
def test_the_head_is_the_first_of_a_sorted_list(
    kind: type[FirstComeFirstServed | Priority], calls: list[tuple[str, int]]
) -> None:
    policy: SchedulingPolicy = kind()
    waiting: list[Sequence] = []
    running: list[Sequence] = []
    number = 0
    for action, choice in calls:
        if action == "arrive":
            waiting.append(make_sequence(number, priority=choice % 4 - 1))
            policy.add(waiting[-1])
            number += 1
        elif action == "admit" and waiting:
            running.append(admit_head(policy))
            waiting.remove(running[-1])
            compute(policy, running[-1], 1)
        elif action == "leave" and waiting:
            policy.remove(waiting.pop(choice % len(waiting)))
        elif action == "preempt" and running:
            victim = policy.victim(iter(running))
            assert victim is max(running, key=lambda one: _key(policy, one))
            running.remove(victim)
            preempt(policy, victim)
            waiting.append(victim)
        assert len(policy) == len(waiting)
        assert set(policy) == set(waiting)
        if waiting:
            assert policy.head() is min(waiting, key=lambda one: _key(policy, one))


@pytest.mark.parametrize("name", list(POLICIES))
def test_removing_an_unknown_sequence_or_adding_a_number_twice_raises(name: str) -> None:
    policy: SchedulingPolicy = POLICIES[name]()
    policy.add(make_sequence(1))
    with pytest.raises(KeyError, match="r1"):
        policy.remove(make_sequence(1))
    with pytest.raises(ValueError, match="number 1 is already waiting"):
        policy.add(make_sequence(1))
    assert len(policy) == 1


@pytest.mark.parametrize("name", list(POLICIES))
def test_sequences_removed_from_the_middle_leave_no_memory_behind(name: str) -> None:
    policy: SchedulingPolicy = POLICIES[name]()
    policy.add(make_sequence(0))

    def add_and_remove(first: int, last: int) -> int:
        for number in range(first, last):
            sequence = make_sequence(number)
            policy.add(sequence)
            policy.remove(sequence)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = add_and_remove(1, 500)
        assert add_and_remove(500, 3000) - before < 20_000, "2,500 entries would be some 180 kB"
    finally:
        tracemalloc.stop()
    assert policy.head().number == 0
