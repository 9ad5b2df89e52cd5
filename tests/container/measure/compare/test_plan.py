"""The order and the seeds of rounds, and the shares of the error probability."""

from __future__ import annotations

import dataclasses

from container.measure.compare.plan import EARLY_STOP_FACTOR, Part, Plan, StoppingRule, in_turn
from tests.container.measure.compare.made_up import make_scenario


def test_the_order_of_configurations_reverses_every_round() -> None:
    assert ["".join(in_turn("ABC", number)) for number in (1, 2, 3)] == ["ABC", "CBA", "ABC"]


def test_every_round_and_warm_up_has_its_own_seed() -> None:
    plan = Plan((), num_rounds=5, seed=7)
    rounds = [plan.round_seed(number) for number in range(1, 6)]
    warm_ups = [plan.warm_up_seed(number) for number in range(1, 6)]
    assert len({*rounds, *warm_ups}) == 10
    other = dataclasses.replace(plan, seed=8)
    assert not {other.round_seed(number) for number in range(1, 1001)} & {*rounds, *warm_ups}


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
