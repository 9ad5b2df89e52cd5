"""The order of rounds, and the rounds that one server runs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from container.measure.compare.plan import EARLY_STOP_FACTOR, Part, Plan, StoppingRule
from tests.bench.stays import Stay, stays
from tests.container.measure.compare.made_up import make_scenario


def test_the_order_of_configurations_reverses_every_round_and_neighbours_share_a_server() -> None:
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
def test_each_configuration_runs_each_round_once_in_order(configs: list[str], num_rounds: int) -> None:
    found = stays(configs, num_rounds)
    runs = Counter((stay.configuration, number) for stay in found for number in stay.rounds)
    assert runs == Counter({(config, number): 1 for config in configs for number in range(1, num_rounds + 1)})
    numbers = [number for stay in found for number in stay.rounds]
    assert numbers == sorted(numbers)
    assert all(before.configuration != after.configuration for before, after in pairwise(found))


def test_every_round_and_warm_up_has_its_own_seed() -> None:
    plan = Plan((), num_rounds=5, seed=7)
    rounds = [plan.round_seed(number) for number in range(1, 6)]
    warm_ups = [plan.warm_up_seed(number) for number in range(1, 6)]
    assert len({*rounds, *warm_ups}) == 10


def test_the_error_is_shared_by_all_pairs_scenarios_and_measures() -> None:
    names = ["a", "b", "c"]
    plan = Plan((make_scenario("one", 8, 4, 2, 2), make_scenario("two", 8, 4, 2, 2)), 5, seed=0)
    assert plan.num_error_shares(names, num_measures=7) == 2 * 2 * 7
    split = dataclasses.replace(plan, parts=(Part("paging", "c", "b"), Part("kernels", "b", "a")))
    assert split.num_error_shares(names, num_measures=7) == 3 * 2 * 7
    with_further_pairs = dataclasses.replace(split, further_pairs=(("c", "a"), ("a", "c")))
    assert with_further_pairs.num_error_shares(names, num_measures=1) == 4 * 2
    for precision, factor in ((None, 1), (0.03, EARLY_STOP_FACTOR)):
        stopping = dataclasses.replace(plan, stopping=StoppingRule(precision, 50))
        assert stopping.num_error_shares(names, num_measures=7) == 2 * 2 * 7 * factor
