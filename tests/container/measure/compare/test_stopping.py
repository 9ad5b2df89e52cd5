"""Stopping rules: when a comparison stops, and that stopping early does not raise the error probability."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

import pytest

from container.measure.compare.interval import CONFIDENCE, t_quantile
from container.measure.compare.plan import EARLY_STOP_FACTOR, Plan, StoppingRule
from container.measure.compare.results import Comparison
from container.measure.compare.stopping import reason_to_stop, rounds_to_check
from tests.container.measure.compare.made_up import SCENARIO, compare_speeds
from tests.container.measure.compare.simulated import comparisons_until_precise, share_different

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]


def compared(speeds: Sequence[float], rule: StoppingRule | None, num_rounds: int = 5) -> Comparison:
    """Compare `b` at these speeds with `a` at 100."""
    comparison = compare_speeds({"a": [100.0] * len(speeds), "b": speeds})
    plan = Plan((SCENARIO,), num_rounds, seed=0, stopping=rule)
    return dataclasses.replace(comparison, plan=plan)


def test_without_a_rule_the_planned_rounds_are_run() -> None:
    assert [bool(reason_to_stop(compared(STEADY[:count], None), 1e9)) for count in range(6)] == [
        *([False] * 5),
        True,
    ]


def test_rounds_continue_until_the_interval_is_narrow() -> None:
    rule = StoppingRule(0.05, max_rounds=50)
    assert reason_to_stop(compared(STEADY, rule), 1.0) == (
        "the intervals of tokens/s are at most 2.5 % to each side"
    )
    assert not reason_to_stop(compared([100.0, 120.0, 90.0, 100.5, 99.5], rule), 1.0)
    assert not reason_to_stop(compared([*STEADY, 100.0], rule), 1.0), "the width is not checked after round 6"


def test_the_size_of_the_difference_does_not_matter() -> None:
    rule = StoppingRule(0.01, max_rounds=50)
    twice = [2 * speed for speed in STEADY]
    assert not reason_to_stop(compared(STEADY, rule), 1.0)
    assert not reason_to_stop(compared(twice, rule), 1.0)


def test_a_time_limit_and_a_limit_of_rounds_stop_a_comparison() -> None:
    rule = StoppingRule(0.0001, max_rounds=5, max_seconds=60.0)
    assert reason_to_stop(compared(STEADY[:2], rule), 61.0) == "the time limit was reached"
    assert not reason_to_stop(compared([], rule), 61.0), "a comparison has at least one round"
    assert not reason_to_stop(compared(STEADY[:4], rule), 59.0)
    assert reason_to_stop(compared(STEADY, rule), 59.0) == "the limit of 5 rounds was reached"
    untimed = StoppingRule(None, max_rounds=6, max_seconds=60.0)
    assert not reason_to_stop(compared(STEADY, untimed), 59.0)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(5, 50, (5, 7, 10, 14, 20, 28, 40, 50)), (2, 6, (5, 6)), (8, 8, (8,)), (10, 4, (4,))],
)
def test_the_width_is_checked_after_growing_numbers_of_rounds(
    first: int, last: int, expected: tuple[int, ...]
) -> None:
    assert rounds_to_check(first, last) == expected


@pytest.mark.parametrize("num_intervals", [1, 7, 35])
def test_the_error_probability_holds_for_any_precision(num_intervals: int) -> None:
    """Rounds are normal with noise 1. The mean is independent of the noise, so the noise alone gives the error."""
    error = (1.0 - CONFIDENCE) / num_intervals
    numbers = rounds_to_check(5, 50)
    quantiles = [t_quantile(error / EARLY_STOP_FACTOR, number - 1) for number in numbers]
    rng = random.Random(num_intervals)
    runs = [_noise(numbers, rng) for _ in range(1500)]
    for precision in (2.0, 1.0, 0.7, 0.5, 0.4):
        errors = []
        for noise in runs:
            stop = next(
                (
                    index
                    for index, (number, deviation) in enumerate(zip(numbers, noise, strict=True))
                    if quantiles[index] * deviation / math.sqrt(number) <= precision
                ),
                len(numbers) - 1,
            )
            errors.append(math.erfc(quantiles[stop] * noise[stop] / math.sqrt(2)))
        assert sum(errors) / len(errors) <= error, precision


def test_equal_configurations_that_stop_early_are_rarely_reported_as_different() -> None:
    """`make verify` runs 1,000 comparisons of each kind."""
    comparisons = list(comparisons_until_precise("rolling", 0.4, count=30))
    assert len({comparison.num_rounds for comparison in comparisons}) > 1
    assert share_different(comparisons) <= 0.05


def _noise(numbers: Sequence[int], rng: random.Random) -> list[float]:
    """Draw the standard deviations of the first n normal rounds, for each n of `numbers`."""
    squares, freedom, found = 0.0, 0, []
    for number in numbers:
        squares += rng.gammavariate((number - 1 - freedom) / 2, 2.0)
        freedom = number - 1
        found.append(math.sqrt(squares / freedom))
    return found
