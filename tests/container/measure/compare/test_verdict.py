"""Verdicts: a difference, no difference, or too few rounds."""

from __future__ import annotations

import math

import pytest

from container.measure.compare.summary import LATENCY_P90, TOKENS_PER_SECOND, Measure, ratio
from container.measure.compare.verdict import headline, in_words
from tests.container.measure.compare.made_up import SCENARIO, compare_speeds

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]


def verdict_on(speeds: list[float], measure: Measure) -> str:
    """The verdict on `b` with these speeds, compared with a steady `a`."""
    comparison = compare_speeds({"a": STEADY, "b": speeds})
    return in_words(ratio(comparison, "b", "a", SCENARIO.name, measure), "b", "a", measure)


def test_the_better_configuration_is_named_first_with_the_interval() -> None:
    twice = [2 * speed * noise for speed, noise in zip(STEADY, (1.0, 1.01, 0.99, 1.0, 1.0), strict=True)]
    half = [speed / 2 for speed in STEADY]
    assert (
        verdict_on(twice, TOKENS_PER_SECOND)
        == "b is faster than a by 100.0 % (95 % interval 96.8 % to 103.2 %)"
    )
    assert verdict_on(twice, LATENCY_P90) == "b takes 50.0 % less than a (95 % interval 49.2 % to 50.8 %)"
    assert verdict_on(half, TOKENS_PER_SECOND).startswith("a is faster than b by 100.0 %")
    assert verdict_on(half, LATENCY_P90).startswith("a takes 50.0 % less than b")


@pytest.mark.parametrize(
    ("speeds", "kind", "text"),
    [
        ([2 * speed for speed in STEADY], "difference", "b is faster than a by 100.0 %"),
        (
            [101.0, 99.0, 100.0, 99.5, 100.5],
            "same",
            "no difference larger than 3.3 % between b and a (this run could detect 3.3 %)",
        ),
        ([50.0, 200.0, 100.0, 90.0, 110.0], "open", "too few rounds: b may be 0.3"),
        ([50.0, 200.0, *[math.nan] * 3], "open", "too few rounds: 2 rounds vary too much for a verdict"),
        ([100.0, *[math.nan] * 4], "open", "too few rounds: one"),
        ([math.nan] * 5, "open", "-."),
    ],
)
def test_a_finding_has_a_kind_and_the_verdict(speeds: list[float], kind: str, text: str) -> None:
    finding = headline(compare_speeds({"a": STEADY, "b": speeds}))[0]
    assert finding.kind == kind
    assert str(finding) == f"{SCENARIO.name}, output tokens/s: {verdict_on(speeds, TOKENS_PER_SECOND)}."
    assert str(finding).startswith(f"{SCENARIO.name}, output tokens/s: {text}")


@pytest.mark.parametrize("num_rounds", [1, 3])
def test_every_further_configuration_has_a_finding_on_throughput_and_latency(num_rounds: int) -> None:
    comparison = compare_speeds({"a": [1.0] * num_rounds, "b": [2.0] * num_rounds, "c": [1.0] * num_rounds})
    assert [one.subject for one in headline(comparison)] == [
        f"{SCENARIO.name}, {measure.title}" for measure in (TOKENS_PER_SECOND, LATENCY_P90) for _ in "bc"
    ]
