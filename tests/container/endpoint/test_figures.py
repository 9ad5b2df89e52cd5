"""Figures by variant, and comparisons of two variants."""

from __future__ import annotations

import random

from container.endpoint.figures import ServedRequest, VariantFigures, table, verdicts


def make_figures(
    variant: str, typical: float, count: int, *, errors: int = 0, start: float = 0.0, config: str = "config"
) -> VariantFigures:
    """Record `count` responses in 100 s with latencies around `typical`, and some errors."""
    figures = VariantFigures("endpoint", config, variant, shadow=False)
    draw = random.Random(variant)
    for number in range(count):
        seconds = typical * draw.lognormvariate(0.0, 0.2)
        figures.record(ServedRequest(start + number * 100 / count, seconds, None, 200))
    for _ in range(errors):
        figures.record(ServedRequest(start + 50.0, 0.001, None, 500))
    return figures


def test_figures_count_requests_and_errors_and_time_successful_requests() -> None:
    values = make_figures("A", 1.0, 200, errors=3).values()
    assert (values["requests"], values["errors"], values["dropped"]) == (203, 3, 0)
    assert 0.9 < values["latency"].p50 < 1.1  # type: ignore[attr-defined]
    rows = table([make_figures("A", 1.0, 200, errors=3), make_figures("B", 1.0, 0)]).rows
    assert [row[:6] for row in rows] == [("endpoint", "A (config)", "production", "203", "3", "0")]


def test_a_verdict_names_the_faster_variant() -> None:
    (sentence,) = verdicts([make_figures("A", 1.0, 900), make_figures("B", 0.7, 100)])
    assert sentence.startswith("endpoint, latency p50: B (config) takes")
    assert "less than A (config) (95 % interval" in sentence


def test_a_verdict_on_equal_variants_reports_no_difference() -> None:
    (sentence,) = verdicts([make_figures("A", 1.0, 900), make_figures("B", 1.0, 900)])
    assert "no difference larger than" in sentence


def test_variants_are_compared_within_a_configuration_and_across_updates() -> None:
    figures = [
        make_figures(variant, 1.0, 200, config=config) for config in ("one", "two") for variant in ("A", "B")
    ]
    sentences = verdicts(figures)
    assert len(sentences) == 4
    assert not any("A (one)" in sentence and "B (two)" in sentence for sentence in sentences)


def test_variants_that_did_not_serve_at_the_same_time_are_not_compared() -> None:
    for count in (97, 100):  # a round of 97 and 100 requests would have some of each
        assert verdicts([make_figures("A", 1.0, count), make_figures("B", 1.0, 100, start=1000.0)]) == []
    assert verdicts([make_figures("A", 1.0, 100)]) == []


def test_variants_are_compared_in_the_time_in_which_both_served() -> None:
    (sentence,) = verdicts([make_figures("A", 1.0, 900), make_figures("B", 1.0, 100, start=99.0)])
    assert "too few rounds: one round" in sentence
