"""Verdicts: the words for a difference, for no difference, and for too few rounds."""

from __future__ import annotations

import math

import pytest

from container.measure.compare.summary import LATENCY_P90, TOKENS_PER_SECOND, Measure
from container.measure.compare.verdict import headline, verdict
from tests.container.measure.compare.made_up import SCENARIO, compare_speeds

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]


def said(speeds: list[float], measure: Measure) -> str:
    """The verdict on `b` with these speeds beside a steady `a`."""
    return verdict(compare_speeds({"a": STEADY, "b": speeds}), "b", "a", SCENARIO.name, measure)


def test_the_better_configuration_comes_first_with_its_interval() -> None:
    twice = [2 * speed * noise for speed, noise in zip(STEADY, (1.0, 1.01, 0.99, 1.0, 1.0), strict=True)]
    half = [speed / 2 for speed in STEADY]
    assert said(twice, TOKENS_PER_SECOND) == "b is faster than a by 100.0 % (95 % interval 96.8 % to 103.2 %)"
    assert said(twice, LATENCY_P90) == "b takes 50.0 % less than a (95 % interval 49.2 % to 50.8 %)"
    assert said(half, TOKENS_PER_SECOND).startswith("a is faster than b by 100.0 %")
    assert said(half, LATENCY_P90).startswith("a takes 50.0 % less than b")


def test_no_difference_larger_than_what_the_interval_allows() -> None:
    close = [101.0, 99.0, 100.0, 99.5, 100.5]
    assert (
        said(close, TOKENS_PER_SECOND)
        == "no difference larger than 3.3 % between b and a (this run could see 3.3 %)"
    )


def test_too_few_rounds_are_said_to_be_so() -> None:
    wild = [50.0, 200.0, 100.0, 90.0, 110.0]
    assert said(wild, TOKENS_PER_SECOND).startswith("too few rounds: b may be at 0.3")
    two = [50.0, 200.0, *[math.nan] * 3]
    assert said(two, TOKENS_PER_SECOND) == "too few rounds: 2 rounds vary too much for a verdict"
    assert said([100.0, *[math.nan] * 4], TOKENS_PER_SECOND).startswith("too few rounds: one")
    assert said([math.nan] * 5, TOKENS_PER_SECOND) == "-"


@pytest.mark.parametrize("num_rounds", [1, 3])
def test_every_further_configuration_has_a_sentence_on_throughput_and_on_latency(num_rounds: int) -> None:
    made = compare_speeds(
        {name: [speed] * num_rounds for name, speed in (("a", 1.0), ("b", 2.0), ("c", 1.0))}
    )
    assert [one.subject for one in headline(made)] == [
        f"{SCENARIO.name}, {measure.title}" for measure in (TOKENS_PER_SECOND, LATENCY_P90) for _ in "bc"
    ]


@pytest.mark.parametrize(
    ("speeds", "kind"),
    [
        ([2 * speed for speed in STEADY], "difference"),
        ([101.0, 99.0, 100.0, 99.5, 100.5], "same"),
        ([50.0, 200.0, 100.0, 90.0, 110.0], "open"),
        ([100.0, *[math.nan] * 4], "open"),
        ([math.nan] * 5, "open"),
    ],
)
def test_a_finding_is_of_one_kind(speeds: list[float], kind: str) -> None:
    made = compare_speeds({"a": STEADY, "b": speeds})
    finding = headline(made)[0]
    assert finding.kind == kind
    assert str(finding) == f"{SCENARIO.name}, output tokens/s: {said(speeds, TOKENS_PER_SECOND)}."
