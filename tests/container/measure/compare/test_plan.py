"""The order of rounds, and how long a server stays up."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from container.measure.compare.plan import Plan, Stay, stays


def test_rounds_run_there_and_back_and_neighbours_share_a_server() -> None:
    assert stays(["A", "B", "C"], 3) == (
        Stay("A", (1,)),
        Stay("B", (1,)),
        Stay("C", (1, 2)),
        Stay("B", (2,)),
        Stay("A", (2, 3)),
        Stay("B", (3,)),
        Stay("C", (3,)),
    )


def test_two_configurations_run_a_b_b_a_a_b() -> None:
    order = "".join(stay.configuration * len(stay.rounds) for stay in stays(["A", "B"], 3))
    assert order == "ABBAAB"


@given(st.lists(st.text(), min_size=2, max_size=6, unique=True), st.integers(1, 9))
def test_each_configuration_runs_each_round_once_and_rounds_come_in_order(
    configs: list[str], num_rounds: int
) -> None:
    found = stays(configs, num_rounds)
    runs = Counter((stay.configuration, number) for stay in found for number in stay.rounds)
    assert runs == Counter({(config, number): 1 for config in configs for number in range(1, num_rounds + 1)})
    numbers = [number for stay in found for number in stay.rounds]
    assert numbers == sorted(numbers)
    assert all(before.configuration != after.configuration for before, after in pairwise(found))


def test_every_round_and_the_warm_up_have_seeds_of_their_own() -> None:
    plan = Plan((), num_rounds=5, seed=7)
    rounds = [plan.round_seed(number) for number in range(1, 6)]
    warm_ups = [plan.warm_up_seed(number) for number in range(1, 6)]
    assert len({*rounds, *warm_ups}) == 10
