"""Comparisons put together from recorded rounds of two equal configurations (`aa_rounds.json`)."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

from container.bench.figures import Figures, Spread
from container.compare.results import Comparison
from container.compare.summary import MEASURES, ratio
from tests.container.compare.made_up import SCENARIO, make_arm, make_comparison, make_figures, make_round

NAMES = ("a", "b")
ROUNDS_FILE = Path(__file__).with_name("aa_rounds.json")
"""By kind and round, the figures of both configurations by measure. `record_rounds.py` writes it.

`rolling` was recorded on a busy machine, whose noise is some 50 % of a round, `dynamic` with far less noise.
"""
KINDS = ("rolling", "dynamic")

Pair = list[dict[str, float]]


def recorded_rounds(kind: str) -> list[Pair]:
    rounds: list[Pair] = json.loads(ROUNDS_FILE.read_text())[kind]
    return rounds


def simulate(rounds: list[Pair], speed: float = 1.0) -> Comparison:
    """A comparison of `a` and `b` that had these rounds, but for `b`, which is made `speed` times as fast."""
    made = []
    for number, (first, second) in enumerate(rounds, start=1):
        made.append(make_round("a", number, _figures(first, 1.0)))
        made.append(make_round("b", number, _figures(second, speed)))
    return make_comparison([make_arm(name) for name in NAMES], made)


def _figures(values: dict[str, float], speed: float) -> Figures:
    rate = values["output_tokens_per_second"] * speed
    times = {
        name: Spread(values[f"{name}_p50"] / speed, values[f"{name}_p90"] / speed, math.nan)
        for name in ("ttft", "gap", "latency")
    }
    return replace(make_figures(), output_tokens_per_second=rate, **times)


def share_different(kind: str, num_rounds: int, count: int, speed: float = 1.0) -> float:
    """The share of `count` simulated comparisons in which any measure is called different.

    Rounds are drawn from the recorded ones, each at most once in a comparison; a coin decides which of a pair is `a`.
    """
    recorded, rng = recorded_rounds(kind), random.Random(num_rounds)
    found = 0
    for _ in range(count):
        drawn = rng.sample(recorded, num_rounds)
        found += any_difference(simulate([pair[:: rng.choice((1, -1))] for pair in drawn], speed))
    return found / count


def share_different_in_sequence(kind: str, num_rounds: int) -> float:
    """The same share over all runs of so many recorded rounds as they followed each other."""
    recorded = recorded_rounds(kind)
    starts = range(len(recorded) - num_rounds + 1)
    return sum(any_difference(simulate(recorded[at : at + num_rounds])) for at in starts) / len(starts)


def any_difference(comparison: Comparison) -> bool:
    ratios = (ratio(comparison, "b", "a", SCENARIO.name, measure) for measure in MEASURES)
    return any(one is not None and one.differs for one in ratios)
