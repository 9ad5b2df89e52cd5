"""Comparisons made of recorded rounds of two equal configurations (`aa_rounds.json`)."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from container.measure.bench.figures import Figures, Spread
from container.measure.compare.interval import Ratio
from container.measure.compare.plan import Plan, StoppingRule
from container.measure.compare.results import Comparison
from container.measure.compare.stopping import reason_to_stop, rounds_to_check
from container.measure.compare.summary import MEASURES, Measure, ratio
from tests.container.measure.compare.made_up import (
    SCENARIO,
    make_comparison,
    make_configuration,
    make_figures,
    make_round,
)

NAMES = ("a", "b")
ROUNDS_FILE = Path(__file__).with_name("aa_rounds.json")
"""Figures of both configurations by kind, round and measure. Gaps between tokens stand for the time per output token.

`rolling` was recorded on a busy machine, with noise of some 50 % per round; `dynamic` has far less noise.
"""
KINDS = ("rolling", "dynamic")

Pair = list[dict[str, float]]


def recorded_rounds(kind: str) -> list[Pair]:
    rounds: list[Pair] = json.loads(ROUNDS_FILE.read_text())[kind]
    return rounds


def simulate(rounds: list[Pair], speed: float = 1.0) -> Comparison:
    """Return a comparison of `a` and `b` with these rounds, with `b` made `speed` times as fast."""
    results = []
    for number, (first, second) in enumerate(rounds, start=1):
        results.append(make_round("a", number, _figures(first, 1.0)))
        results.append(make_round("b", number, _figures(second, speed)))
    return make_comparison([make_configuration(name) for name in NAMES], results)


def _figures(values: dict[str, float], speed: float) -> Figures:
    def spread(name: str) -> Spread:
        p50, p90 = values[f"{name}_p50"] / speed, values[f"{name}_p90"] / speed
        return Spread(math.nan, p50, p90, math.nan, math.nan)

    rate = values["output_tokens_per_second"] * speed
    return replace(make_figures(rate), ttft=spread("ttft"), tpot=spread("gap"), latency=spread("latency"))


def comparisons(kind: str, num_rounds: int, count: int, speed: float = 1.0) -> Iterator[Comparison]:
    """Yield comparisons of recorded rounds, drawn without replacement. Which one of a pair is `a` is random."""
    recorded, rng = recorded_rounds(kind), random.Random(num_rounds)
    for _ in range(count):
        drawn = rng.sample(recorded, num_rounds)
        yield simulate([pair[:: rng.choice((1, -1))] for pair in drawn], speed)


def comparisons_until_precise(kind: str, precision: float, count: int) -> Iterator[Comparison]:
    """Yield comparisons of equal configurations that are stopped by `--precision`."""
    recorded, rng = recorded_rounds(kind), random.Random(precision)
    rule = StoppingRule(precision, max_rounds=len(recorded))
    for _ in range(count):
        drawn = [pair[:: rng.choice((1, -1))] for pair in rng.sample(recorded, len(recorded))]
        whole = replace(simulate(drawn), plan=Plan((SCENARIO,), 5, seed=0, stopping=rule))
        prefixes = (
            replace(whole, rounds=whole.rounds[: 2 * number]) for number in rounds_to_check(5, len(recorded))
        )
        yield next(prefix for prefix in prefixes if reason_to_stop(prefix, 0.0))


def consecutive(kind: str, num_rounds: int) -> Iterator[Comparison]:
    """Yield comparisons of `num_rounds` consecutive recorded rounds, starting at each round."""
    recorded = recorded_rounds(kind)
    for start in range(len(recorded) - num_rounds + 1):
        yield simulate(recorded[start : start + num_rounds])


def share_different(compared: Iterable[Comparison]) -> float:
    """Return the share of comparisons that report a difference in any measure."""
    return statistics.fmean(
        any(one.differs for one in _ratios(comparison).values()) for comparison in compared
    )


def detected_share(compared: Iterable[Comparison]) -> float:
    """Return the share of comparisons that report `b` as better in some measure and worse in none."""
    return statistics.fmean(_finds_b(_ratios(comparison)) for comparison in compared)


def _finds_b(ratios: dict[Measure, Ratio]) -> bool:
    directions = {
        (one.value > 1) == measure.higher_is_better for measure, one in ratios.items() if one.differs
    }
    return directions == {True}


def _ratios(comparison: Comparison) -> dict[Measure, Ratio]:
    ratios: dict[Measure, Ratio] = {}
    for measure in MEASURES:
        one = ratio(comparison, "b", "a", SCENARIO.name, measure)
        assert one is not None, f"no ratio of {measure}"
        ratios[measure] = one
    return ratios
