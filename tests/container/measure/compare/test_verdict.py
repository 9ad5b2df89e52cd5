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


@pytest.mark.parametrize(
    ("factor", "faster", "shorter"),
    [
        (
            1.5,
            "b is faster than a by 50.0 % (95 % interval 47.6 % to 52.4 %)",
            "b takes 33.3 % less than a (95 % interval 32.3 % to 34.4 %)",
        ),
        (
            4.0,
            "b is 4.00 times as fast as a (95 % interval 3.94 to 4.06)",
            "a takes 4.00 times as long as b (95 % interval 3.94 to 4.06)",
        ),
    ],
)
def test_the_better_configuration_is_named_with_the_interval(
    factor: float, faster: str, shorter: str
) -> None:
    noisy = [speed * noise for speed, noise in zip(STEADY, (1.0, 1.01, 0.99, 1.0, 1.0), strict=True)]
    assert verdict_on([factor * speed for speed in noisy], TOKENS_PER_SECOND) == faster
    assert verdict_on([factor * speed for speed in noisy], LATENCY_P90) == shorter
    slower = [speed / factor for speed in noisy]
    assert verdict_on(slower, TOKENS_PER_SECOND).startswith("a is ")
    assert verdict_on(slower, LATENCY_P90).startswith(f"{'a' if factor < 2 else 'b'} takes ")


@pytest.mark.parametrize(
    ("speeds", "kind", "text"),
    [
        ([3 * speed for speed in STEADY], "difference", "b is 3.00 times as fast as a"),
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
