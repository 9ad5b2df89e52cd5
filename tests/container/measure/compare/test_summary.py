"""Medians, ratios of paired rounds and token equality, compared with hand calculations."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.measure.compare.results import RoundResult
from container.measure.compare.summary import (
    LATENCY_P90,
    TOKENS_PER_SECOND,
    Equality,
    Median,
    TokenDifference,
    equality,
    first_difference,
    median,
    over_rounds,
    ratio,
)
from tests.container.measure.compare.made_up import (
    SCENARIO,
    TOKENS,
    compare_speeds,
    make_comparison,
    make_configuration,
    make_figures,
    make_round,
)

NAME = SCENARIO.name


def test_a_figure_is_the_median_over_rounds_with_the_range() -> None:
    comparison = compare_speeds({"a": [120.0, 100.0, 110.0], "b": [1.0, 1.0, 1.0]})
    assert over_rounds(comparison, "a", NAME, TOKENS_PER_SECOND) == Median(110.0, 100.0, 120.0, 3)
    assert over_rounds(comparison, "a", NAME, LATENCY_P90) == Median(100 / 110, 100 / 120, 1.0, 3)
    assert median([math.nan]) is None


def test_a_ratio_is_the_geometric_mean_of_ratios_paired_by_round() -> None:
    comparison = compare_speeds({"a": [100.0, 50.0, 10.0], "b": [200.0, 400.0, 40.0]})
    # The ratios of the rounds are 2, 8 and 4.
    speed = ratio(comparison, "b", "a", NAME, TOKENS_PER_SECOND)
    latency = ratio(comparison, "b", "a", NAME, LATENCY_P90)
    assert speed is not None
    assert latency is not None
    assert (speed.value, speed.count) == (pytest.approx(4.0), 3)
    assert (latency.low, latency.high) == (pytest.approx(1 / speed.high), pytest.approx(1 / speed.low))
    # t(0.05 / 7 measures, 2 degrees of freedom) is 11.769. The standard deviation of log 2, log 8, log 4 is log 2.
    assert speed.high == pytest.approx(4.0 * 2 ** (11.7687 / math.sqrt(3)), rel=1e-3)


def test_intervals_widen_with_the_number_of_configurations_and_scenarios() -> None:
    speeds = {"a": [100.0, 102.0, 99.0], "b": [101.0, 99.0, 98.0]}
    two = ratio(compare_speeds(speeds), "b", "a", NAME, TOKENS_PER_SECOND)
    three = ratio(compare_speeds({**speeds, "c": [1.0] * 3}), "b", "a", NAME, TOKENS_PER_SECOND)
    assert two is not None
    assert three is not None
    assert three.low < two.low < two.high < three.high


def same_tokens(*rounds: RoundResult, model_of_b: str = "model") -> Equality | None:
    configs = [make_configuration("a"), make_configuration("b", model=model_of_b)]
    return equality(make_comparison(configs, rounds), "b", "a", NAME)


def test_identical_responses_are_counted_and_the_earliest_difference_is_found() -> None:
    same = same_tokens(
        make_round("a", 1),
        make_round("a", 2),
        make_round("b", 1, token_ids=(TOKENS[0], (5, 6, 7, 9))),
        make_round("b", 2, token_ids=((1, 9, 3, 4), TOKENS[1])),
    )
    assert same is not None
    assert (same.num_requests, same.num_identical) == (4, 2)
    assert same.earliest == TokenDifference(round=2, request=0, position=1)


def test_failed_responses_are_not_compared() -> None:
    failed = make_round("b", 1, make_figures(errors=["gone"]), token_ids=((), TOKENS[1]))
    same = same_tokens(make_round("a", 1), failed)
    assert same is not None
    assert (same.num_requests, same.num_identical, same.earliest) == (1, 1, None)


def test_tokens_of_different_models_or_without_ids_are_not_compared() -> None:
    assert same_tokens(make_round("a", 1), make_round("b", 1), model_of_b="another") is None
    assert same_tokens(*(make_round(name, 1, token_ids=((), ())) for name in "ab")) is None


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_the_first_difference_is_the_end_of_the_common_prefix(one: list[int], other: list[int]) -> None:
    index = first_difference(tuple(one), tuple(other))
    assert one[:index] == other[:index]
    assert one[index : index + 1] != other[index : index + 1] or one == other
