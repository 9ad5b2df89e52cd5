"""Intervals: quantiles from published tables, width, and false and missed differences."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable

import pytest

from container.measure.compare.interval import Ratio, ratio_of_rounds, t_quantile
from tests.container.measure.compare.simulated import KINDS, comparisons, share_different


@pytest.mark.parametrize(
    ("freedom", "five_per_cent", "one_per_mille"),
    [
        (1, 12.706, 636.619),
        (2, 4.303, 31.599),
        (3, 3.182, 12.924),
        (4, 2.776, 8.610),
        (5, 2.571, 6.869),
        (9, 2.262, 4.781),
        (10, 2.228, 4.587),
        (30, 2.042, 3.646),
        (60, 2.000, 3.460),
        (120, 1.980, 3.373),
    ],
)
def test_quantiles_match_published_tables(freedom: int, five_per_cent: float, one_per_mille: float) -> None:
    """Two-sided quantiles of Student's t: Fisher and Yates, Statistical Tables, table III."""
    assert t_quantile(0.05, freedom) == pytest.approx(five_per_cent, abs=5.1e-4)
    assert t_quantile(0.001, freedom) == pytest.approx(one_per_mille, abs=5.1e-4)


def interval(ratios: Iterable[float], num_shares: int = 1) -> Ratio:
    found = ratio_of_rounds(ratios, num_shares)
    assert found is not None
    return found


def test_an_interval_matches_a_hand_calculation() -> None:
    found = interval([1.1, 1.2, 1.1, 1.2])
    centre = math.sqrt(1.1 * 1.2)
    deviation = math.log(1.2 / 1.1) / 2 * math.sqrt(4 / 3)
    half_width = math.exp(3.18245 * deviation / 2)
    assert (found.value, found.low, found.high) == pytest.approx(
        (centre, centre / half_width, centre * half_width), rel=1e-5
    )
    assert found.smallest_visible == pytest.approx(half_width - 1, rel=1e-5)
    assert found.differs
    assert not Ratio(1.1, 0.99, 1.2, 5).differs


def test_of_ten_rounds_the_largest_and_the_smallest_do_not_count() -> None:
    usual = [1.0 + number / 100 for number in range(8)]
    found = interval([*usual, 0.1, 90.0])
    assert found.count == 10
    assert found.value == pytest.approx(statistics.geometric_mean(usual))
    assert found.high / found.low < 1.1
    nine = interval([*usual, 90.0])
    assert nine.high / nine.low > 9


@pytest.mark.parametrize("disturbed", [0.0, 0.15])
@pytest.mark.parametrize("count", [10, 30])
def test_the_interval_holds_the_truth_with_and_without_disturbed_rounds(count: int, disturbed: float) -> None:
    rng = random.Random(count)
    missed, runs = 0, 1000
    for _ in range(runs):
        noise = (rng.gauss(0, 4 if rng.random() < disturbed else 1) for _ in range(count))
        missed += interval(math.exp(0.1 * one) for one in noise).differs
    assert missed / runs == pytest.approx(0.05, abs=0.02)


def test_intervals_of_few_rounds_are_wide_and_of_one_round_unbounded() -> None:
    assert ratio_of_rounds([4.0], 1) == Ratio(pytest.approx(4.0), 0.0, math.inf, 1)
    widths = []
    for count in (2, 4, 8, 16):
        found = interval([0.95, 1.05] * (count // 2), num_shares=7)
        widths.append(found.high / found.low)
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 1000  # two rounds: a factor of 30 in each direction


def test_rounds_without_a_ratio_are_ignored() -> None:
    assert ratio_of_rounds([math.nan, 0.0, math.inf], 1) is None
    assert interval([math.nan, 2.0, 2.0]).count == 2


def test_intervals_beyond_the_range_of_floats_are_unbounded() -> None:
    found = interval([1e-5, 1e5], num_shares=100)
    assert (found.low, found.high) == (0.0, math.inf)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_configurations_are_rarely_reported_as_different(kind: str) -> None:
    """The stated error is 5 % over all measures. `make verify` runs 1,000 comparisons of each kind."""
    assert share_different(comparisons(kind, num_rounds=10, count=100)) <= 0.065
