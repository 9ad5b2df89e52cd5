"""From rounds to statements: medians with their range, ratios with their intervals, token equality."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from container.measure.bench.figures import Figures
from container.measure.compare.interval import Ratio, ratio_of_rounds
from container.measure.compare.results import Comparison


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a round.

    Requests/s are none: with the same requests for all configurations their ratio is that of the tokens/s.
    """

    key: str
    title: str
    unit: str
    """`s`, `ms` or `/s`; the value itself is in seconds or per second."""
    of: Callable[[Figures], float]

    @property
    def higher_is_better(self) -> bool:
        """A rate, not a time."""
        return self.unit == "/s"


TOKENS_PER_SECOND = Measure(
    "output_tokens_per_second", "output tokens/s", "/s", lambda figures: figures.output_tokens_per_second
)
LATENCY_P90 = Measure("latency_p90", "latency p90", "s", lambda figures: figures.latency.p90)
MEASURES: tuple[Measure, ...] = (
    TOKENS_PER_SECOND,
    Measure("ttft_p50", "time to first token p50", "s", lambda figures: figures.ttft.p50),
    Measure("ttft_p90", "time to first token p90", "s", lambda figures: figures.ttft.p90),
    Measure("gap_p50", "gap between tokens p50", "ms", lambda figures: figures.gap.p50),
    Measure("gap_p90", "gap between tokens p90", "ms", lambda figures: figures.gap.p90),
    Measure("latency_p50", "latency p50", "s", lambda figures: figures.latency.p50),
    LATENCY_P90,
)


@dataclass(frozen=True, slots=True)
class Median:
    """A median with its smallest and largest value."""

    value: float
    low: float
    high: float
    count: int


def median(values: Iterable[float]) -> Median | None:
    """None where there is no number."""
    known = sorted(value for value in values if math.isfinite(value))
    if not known:
        return None
    return Median(statistics.median(known), known[0], known[-1], len(known))


def over_rounds(comparison: Comparison, arm: str, scenario: str, measure: Measure) -> Median | None:
    """One configuration's figure over the rounds of a scenario."""
    return median(measure.of(result.figures) for result in comparison.of(arm, scenario))


def ratio(comparison: Comparison, arm: str, base: str, scenario: str, measure: Measure) -> Ratio | None:
    """Arm over base, from the ratios of rounds with the same number, which had the same requests."""
    below = {result.round: measure.of(result.figures) for result in comparison.of(base, scenario)}
    ratios = [
        measure.of(result.figures) / below[result.round]
        for result in comparison.of(arm, scenario)
        if below.get(result.round)
    ]
    return ratio_of_rounds(ratios, _num_intervals(comparison))


def _num_intervals(comparison: Comparison) -> int:
    """All that a report may show: each measure of each pair of configurations in each scenario."""
    return math.comb(len(comparison.arms), 2) * len(comparison.plan.scenarios) * len(MEASURES)


@dataclass(frozen=True, slots=True)
class Difference:
    """The place where the answers of two configurations to one request differ."""

    round: int
    request: int
    """Its place in the workload, from 0."""
    position: int
    """The first output token that differs, from 0."""


@dataclass(frozen=True, slots=True)
class Equality:
    """Requests to which two configurations gave the same tokens, over all rounds."""

    num_requests: int
    """Requests that both answered."""
    num_identical: int
    earliest: Difference | None
    """The difference at the smallest position; None where there is none."""


def equality(comparison: Comparison, arm: str, base: str, scenario: str) -> Equality | None:
    """Tokens of `arm` beside those of `base`, request by request; None where they cannot be compared.

    They cannot when the models differ, or when no token ids are known.
    """
    if comparison.arm(arm).model_folder != comparison.arm(base).model_folder:
        return None
    below = {result.round: result.token_ids for result in comparison.of(base, scenario)}
    num_requests = 0
    found: list[Difference] = []
    for result in comparison.of(arm, scenario):
        pairs = zip(below.get(result.round, ()), result.token_ids, strict=False)
        for index, (theirs, ours) in enumerate(pairs):
            if not theirs or not ours:
                continue
            num_requests += 1
            if theirs != ours:
                found.append(Difference(result.round, index, first_difference(theirs, ours)))
    if not num_requests:
        return None
    earliest = min(found, key=lambda difference: difference.position, default=None)
    return Equality(num_requests, num_requests - len(found), earliest)


def first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The first place at which two different sequences part; where one is the other's beginning, its length."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
