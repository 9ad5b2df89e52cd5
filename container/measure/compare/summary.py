"""Statistics over rounds: medians with their range, ratios with their intervals, token equality."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from container.measure.bench.figures import Figures
from container.measure.compare.configurations import Configuration
from container.measure.compare.interval import Ratio, ratio_of_rounds
from container.measure.compare.results import Comparison, RoundResult
from container.measure.compare.scrape import RoundCounters
from container.measure.numbers import NO_VALUE, format_number, interval


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure taken from the figures of a round.

    Requests/s are left out: all configurations get the same requests, so the ratio of requests/s is that of tokens/s.
    So are gaps between tokens: they show how a server bundles tokens into messages, not how fast it computes.
    """

    key: str
    title: str
    unit: str
    """`s`, `ms`, `/s` or `%`; the value itself is in seconds, per second, or a share."""
    of: Callable[[Figures], float]

    @property
    def higher_is_better(self) -> bool:
        """Whether the measure is a rate, not a time."""
        return self.unit == "/s"

    @property
    def title_with_unit(self) -> str:
        return self.title if self.unit == "/s" else f"{self.title}, {self.unit}"


TOKENS_PER_SECOND = Measure(
    "output_tokens_per_second", "output tokens/s", "/s", lambda figures: figures.output_tokens_per_second
)
LATENCY_P50 = Measure("latency_p50", "latency p50", "s", lambda figures: figures.latency.p50)
LATENCY_P90 = Measure("latency_p90", "latency p90", "s", lambda figures: figures.latency.p90)
MEASURES: tuple[Measure, ...] = (
    TOKENS_PER_SECOND,
    Measure("ttft_p50", "time to first token p50", "s", lambda figures: figures.ttft.p50),
    Measure("ttft_p90", "time to first token p90", "s", lambda figures: figures.ttft.p90),
    Measure("tpot_p50", "time per output token p50", "ms", lambda figures: figures.tpot.p50),
    Measure("tpot_p90", "time per output token p90", "ms", lambda figures: figures.tpot.p90),
    LATENCY_P50,
    LATENCY_P90,
)


@dataclass(frozen=True, slots=True)
class Median:
    """A median with the smallest and the largest value."""

    value: float
    low: float
    high: float
    count: int


def median(values: Iterable[float]) -> Median | None:
    """Return the median of the finite values; None without finite values."""
    known = sorted(value for value in values if math.isfinite(value))
    if not known:
        return None
    return Median(statistics.median(known), known[0], known[-1], len(known))


def spread(found: Median | None, scale: float = 1.0) -> str:
    """Format as `median (smallest to largest)`; the median alone for one round."""
    if found is None:
        return NO_VALUE
    text = format_number(found.value * scale)
    return (
        text
        if found.count == 1
        else f"{text} ({format_number(found.low * scale)} to {format_number(found.high * scale)})"
    )


def times(ratio: Ratio | None) -> str:
    """Format as `ratio (interval)`; the ratio alone for one round, which gives no interval."""
    if ratio is None:
        return NO_VALUE
    text = f"{format_number(ratio.value)}x"
    return text if ratio.count == 1 else f"{text} ({interval(ratio.low, ratio.high)})"


def over_rounds(comparison: Comparison, name: str, scenario: str, measure: Measure) -> Median | None:
    """Return the median of a configuration's measure over the rounds of a scenario."""
    return median(measure.of(result.metrics) for result in comparison.of(name, scenario))


def ratio(
    comparison: Comparison,
    name: str,
    base: str,
    scenario: str,
    measure: Measure,
    num_measures: int = len(MEASURES),
) -> Ratio | None:
    """Return the ratio of configuration `name` to `base`, from rounds with the same number and so the same requests.

    num_measures: number of reported measures of each pair.
    """
    below = {result.round: measure.of(result.metrics) for result in comparison.of(base, scenario)}
    ratios = [
        measure.of(result.metrics) / below[result.round]
        for result in comparison.of(name, scenario)
        if below.get(result.round)
    ]
    names = [config.name for config in comparison.configs]
    return ratio_of_rounds(ratios, comparison.plan.num_error_shares(names, num_measures))


def mean_batch(results: Iterable[RoundResult]) -> float | None:
    """Return the mean size of all batches of all rounds; None if no server counts batches."""
    batches = [result.batches for result in results if result.batches]
    total = sum(batch.mean * batch.count for batch in batches)
    return total / sum(batch.count for batch in batches) if batches else None


def occupancy(config: Configuration, results: Iterable[RoundResult]) -> float | None:
    """Return the mean batch size as a share of the configuration's limit; None if either is unknown."""
    mean = mean_batch(results)
    return mean / config.batch_limit if mean is not None and config.batch_limit else None


def counters(results: Iterable[RoundResult]) -> RoundCounters:
    """Sum the counters over rounds; None if no round has the counter."""
    found = [dataclasses.asdict(result.counters) for result in results]
    known = {name: [one[name] for one in found if one[name] is not None] for name in RoundCounters.__slots__}
    return RoundCounters(**{name: sum(values) if values else None for name, values in known.items()})


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """The first difference between the answers of two configurations to one request."""

    round: int
    request: int
    """Index in the workload, from 0."""
    position: int
    """Index of the first output token that differs, from 0."""


@dataclass(frozen=True, slots=True)
class Equality:
    """Number of requests that two configurations answered with the same tokens, over all rounds."""

    num_requests: int
    """Requests answered by both."""
    num_identical: int
    earliest: TokenDifference | None
    """The difference at the smallest position; None if all tokens are the same."""


def equality(comparison: Comparison, name: str, base: str, scenario: str) -> Equality | None:
    """Compare the tokens of `name` and `base` request by request.

    Returns None for a configuration and itself, for different models, and if no token ids are known.
    """
    named = {config.name: config for config in comparison.configs}
    if name == base or not named[name].has_model_of(named[base]):
        return None
    below = {result.round: result.token_ids for result in comparison.of(base, scenario)}
    num_requests = 0
    found: list[TokenDifference] = []
    for result in comparison.of(name, scenario):
        pairs = zip(below.get(result.round, ()), result.token_ids, strict=False)
        for index, (theirs, ours) in enumerate(pairs):
            if not theirs or not ours:
                continue
            num_requests += 1
            if theirs != ours:
                found.append(TokenDifference(result.round, index, first_difference(theirs, ours)))
    if not num_requests:
        return None
    earliest = min(found, key=lambda difference: difference.position, default=None)
    return Equality(num_requests, num_requests - len(found), earliest)


def first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the index at which two different sequences diverge; the shorter length if one is a prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
