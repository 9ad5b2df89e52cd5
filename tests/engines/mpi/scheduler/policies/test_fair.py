"""The fair policy against a naive implementation, and its guarantees to tenants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.mpi.scheduler.policies.fair import MAX_IDLE_TENANTS, OUTPUT_WEIGHT, PROMPT_WEIGHT, Fair
from engines.mpi.scheduler.sequence import Sequence
from tests.engines.mpi.scheduler.policies.builders import admit_head, compute, make_sequence, preempt


class _NaiveFair:
    """The rule of the fair policy, without data structures. No tenant is forgotten."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        self.counters: dict[str, int] = {}
        self.floor = 0
        self.last = ""

    def served(self, tenant: str) -> int:
        return max(self.counters.get(tenant, 0), self.floor)

    def tenants(self) -> set[str]:
        return {sequence.request.tenant for sequence in self.waiting}

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if tenant not in self.tenants():
            least = min(map(self.served, self.tenants()), default=self.served(self.last))
            self.floor = max(self.floor, least)
            self.counters[tenant] = self.served(tenant)
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        if sequence.request.tenant not in self.tenants():
            self.last = sequence.request.tenant

    def head(self) -> Sequence:
        return min(self.waiting, key=lambda one: (*self._place(one.request.tenant), one.number))

    def _place(self, tenant: str) -> tuple[int, int]:
        first = min(one.number for one in self.waiting if one.request.tenant == tenant)
        return self.served(tenant), first

    def charge(self, tenant: str, cost: int) -> None:
        if cost:
            self.counters[tenant] = self.served(tenant) + cost

    def victim(self, running: list[Sequence]) -> Sequence:
        most = max(self.served(one.request.tenant) for one in running)
        return max(
            (one for one in running if self.served(one.request.tenant) == most), key=lambda one: one.number
        )


_CALLS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "admit", "admit", "leave", "preempt", "compute", "compute"]),
        st.integers(0, 999),
    ),
    max_size=120,
)


@given(calls=_CALLS, num_tenants=st.integers(1, 5))
def test_random_calls_match_the_naive_implementation(calls: list[tuple[str, int]], num_tenants: int) -> None:
    policy, naive = Fair(), _NaiveFair()
    running: list[Sequence] = []
    number = 0
    for action, choice in calls:
        if action == "arrive":
            sequence = make_sequence(number, f"t{choice % num_tenants}", 0, 1 + choice % 7)
            policy.add(sequence)
            naive.add(sequence)
            number += 1
        elif action == "admit" and naive.waiting:
            sequence = admit_head(policy)
            assert sequence is naive.head()
            naive.remove(sequence)
            if not sequence.num_preemptions:
                naive.charge(sequence.request.tenant, PROMPT_WEIGHT * sequence.num_prompt_tokens)
            running.append(sequence)
        elif action == "leave" and naive.waiting:
            sequence = naive.waiting[choice % len(naive.waiting)]
            policy.remove(sequence)
            naive.remove(sequence)
        elif action == "preempt" and running:
            sequence = policy.victim(iter(running))
            assert sequence is naive.victim(running)
            running.remove(sequence)
            preempt(policy, sequence)
            naive.add(sequence)
        elif action == "compute" and running:
            sequence = running[choice % len(running)]
            count = 1 + choice % (sequence.num_tokens - sequence.num_computed_tokens)
            positions = range(sequence.num_computed_tokens, sequence.num_computed_tokens + count)
            new = [p for p in positions if p >= max(sequence.num_prompt_tokens, sequence.num_ever_computed)]
            naive.charge(sequence.request.tenant, OUTPUT_WEIGHT * len(new))
            compute(policy, sequence, count)
        for tenant in map("t{}".format, range(num_tenants)):
            assert policy.weighted_tokens(tenant) == naive.served(tenant)
        assert len(policy) == len(naive.waiting)
        assert set(policy) == set(naive.waiting)
        if naive.waiting:
            assert policy.head() is naive.head()


def test_past_service_is_remembered_while_other_tenants_wait() -> None:
    policy = Fair()
    policy.add(make_sequence(0, "large", num_prompt_tokens=1000))
    policy.add(make_sequence(1, "small"))
    admit_head(policy)  # the large request; its tenant now has none waiting
    policy.add(make_sequence(2, "large"))
    for number in range(3, 10):
        policy.add(make_sequence(number, "small", num_prompt_tokens=100))
    tenants = [admit_head(policy).request.tenant for _ in range(9)]
    assert tenants == ["small"] * 8 + ["large"]


def test_a_preempted_sequence_is_not_charged_again() -> None:
    policy = Fair()
    sequence = make_sequence(0, "a", num_prompt_tokens=5)
    policy.add(sequence)
    admit_head(policy)
    compute(policy, sequence, 5)
    compute(policy, sequence, 1)
    assert policy.weighted_tokens("a") == 5 * PROMPT_WEIGHT + OUTPUT_WEIGHT
    preempt(policy, sequence)
    admit_head(policy)
    compute(policy, sequence, 7)
    assert policy.weighted_tokens("a") == 5 * PROMPT_WEIGHT + 2 * OUTPUT_WEIGHT


def test_cached_and_shared_prompt_tokens_are_not_charged() -> None:
    policy = Fair()
    first = make_sequence(0, "a", num_prompt_tokens=10)
    policy.add(first)
    policy.remove(first)
    first.num_computed_tokens = 8
    first.row = 0
    policy.record_admission(first)
    assert policy.weighted_tokens("a") == 2 * PROMPT_WEIGHT
    second = make_sequence(1, "a", num_prompt_tokens=10)
    second.sibling = first
    policy.add(second)
    admit_head(policy)
    assert policy.weighted_tokens("a") == 2 * PROMPT_WEIGHT


def test_the_latest_sequence_of_the_most_served_tenant_is_preempted() -> None:
    policy = Fair()
    costs = {"a": 5, "b": 50, "c": 10}
    running = []
    for number, tenant in enumerate("abcbca"):
        policy.add(make_sequence(number, tenant, num_prompt_tokens=costs[tenant]))
    while len(policy):
        running.append(admit_head(policy))
    victims = []
    while running:
        victims.append(policy.victim(running))
        running.remove(victims[-1])
    assert [victim.number for victim in victims] == [3, 1, 4, 2, 5, 0]


@pytest.mark.parametrize("at_once", [1, 50])
def test_tenants_without_requests_are_forgotten(at_once: int) -> None:
    """Each tenant sends one request. Memory does not grow with the number of tenants ever seen."""
    policy = Fair()
    most = 0
    for first in range(0, 1000, at_once):
        for number in range(first, first + at_once):
            policy.add(make_sequence(number, f"t{number}", num_prompt_tokens=3))
        while len(policy):
            compute(policy, admit_head(policy), 3)
        most = max(most, len(policy._tenants))
    assert most <= 4 * at_once + 64


def test_the_number_of_remembered_tenants_is_limited() -> None:
    """The counter of a tenant that waits all the time keeps the floor below the counters of all others."""
    policy = Fair()
    policy.add(make_sequence(0, "stays"))
    for number in range(1, 2 * MAX_IDLE_TENANTS + 500):
        sequence = make_sequence(number, f"t{number}", num_prompt_tokens=1 + number)
        policy.add(sequence)
        policy.remove(sequence)
        policy.record_admission(sequence)
    assert len(policy._tenants) <= 2 * MAX_IDLE_TENANTS + 65
    assert policy.weighted_tokens(f"t{2 * MAX_IDLE_TENANTS + 499}") == 2 * MAX_IDLE_TENANTS + 500
    assert policy.weighted_tokens("t1") == 0, "the tenant least ahead of the floor is forgotten first"
    assert policy.head().id == "r0"
