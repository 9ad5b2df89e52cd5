"""Make the plots of a report from the results, each with a sentence on how to read it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from container.measure.compare.summary import LATENCY_P90, MEASURES, TOKENS_PER_SECOND
from container.measure.report import plots
from container.measure.report.plots import Bar, LoadPoint
from container.measure.report.results import RatioInterval, ReportedRound, Results
from container.measure.report.slots import SlotUse, read_step_trace, slots_of_requests
from container.measure.report.svg import Plot

_THROUGHPUT = TOKENS_PER_SECOND.key
_RATIOS = (_THROUGHPUT, "ttft_p50", "tpot_p50", LATENCY_P90.key)
_MAX_STRETCH = 3.0
"""The time axis of slot plots ends at this multiple of the shortest run, so that the shortest run stays visible."""
_MAX_WIDTH = 100.0
"""An interval may be unbounded. It is drawn from the ratio divided by this factor to the ratio times this factor."""


def plots_by_section(results: Results) -> dict[str, list[Plot]]:
    """Return the plots by section title. The plot over load belongs to the first section."""
    makers = (throughput, attribution, distributions, slot_rows)
    found = {one: [plot for make in makers for plot in make(results, one)] for one in results.scenarios}
    return found | {section.title: list(over_load(results)) for section in results.sections[:1]}


def throughput(results: Results, scenario: str) -> Iterator[Plot]:
    """Yield bars of the throughput, and ratios to the first configuration."""
    bars = [
        Bar(name, index, seen.value, seen.low, seen.high, _round_values(results, name, scenario))
        for index, name in enumerate(results.names)
        if (seen := results.summary_of(name, scenario).metrics.get(_THROUGHPUT))
    ]
    if not bars:
        return
    yield plots.bars(
        "Throughput",
        "output tokens/s",
        bars,
        "Longer is better. A bar ends at the median of the rounds; dots are the rounds, the line shows their range.",
    )
    ratios = {
        measure.title: [
            Bar(name, index, ratio.value, *_drawn_interval(ratio))
            for index, name in enumerate(results.names)
            if index and (ratio := results.summary_of(name, scenario).ratios_to_first.get(measure.key))
        ]
        for measure in MEASURES
        if measure.key in _RATIOS
    }
    if any(ratios.values()):
        yield plots.ratios(
            f"Compared with {results.names[0]}",
            ratios,
            "Points are ratios to the first configuration, lines their 95 % intervals (at most 100 times to each side)."
            " A line that does not cross 1 is a difference. More tokens/s and shorter times are better.",
        )


def _drawn_interval(ratio: RatioInterval) -> tuple[float, float]:
    """Return the ends of the interval to draw. A single round gives no interval, so both ends are the point itself."""
    if ratio.count == 1:
        return ratio.value, ratio.value
    high = math.inf if ratio.high is None else ratio.high
    return max(ratio.low, ratio.value / _MAX_WIDTH), min(high, ratio.value * _MAX_WIDTH)


def _round_values(results: Results, name: str, scenario: str) -> tuple[float, ...]:
    values = (one.metrics.output_tokens_per_second for one in results.rounds_of(name, scenario))
    return tuple(value for value in values if value is not None)


def attribution(results: Results, scenario: str) -> Iterator[Plot]:
    """Yield a waterfall of the throughput, from the configuration with the least to the one with the most."""
    factors = {
        part.cause: part.ratio.value
        for part in reversed(results.attribution)
        if (part.scenario, part.measure) == (scenario, _THROUGHPUT) and part.ratio and not part.is_sum
    }
    if factors:
        caption = (
            "Each bar starts where the one above ends. The product of all factors is the total at the bottom."
        )
        yield plots.waterfall("Where the gain in throughput comes from", factors, caption)


_DISTRIBUTIONS = {
    "ttft": ("Time to first token", "that received their first token within the time below"),
    "tpot": ("Time per output token", "whose mean time per token after the first is at most the time below"),
    "latency": ("Latency", "that completed within the time below"),
}


def distributions(results: Results, scenario: str) -> Iterator[Plot]:
    """Yield the distributions of the request times over all rounds."""
    for key, (title, meaning) in _DISTRIBUTIONS.items():
        samples: dict[int, list[float]] = {}
        for index, name in enumerate(results.names):
            requests = [one for played in results.rounds_of(name, scenario) for one in played.answered]
            if values := [value for one in requests if math.isfinite(value := getattr(one, key))]:
                samples[index] = values
        if samples:
            caption = f"The height of a curve is the share of requests {meaning}. Further left is faster."
            yield plots.distribution(title, samples, caption)


def slot_rows(results: Results, scenario: str) -> Iterator[Plot]:
    """Yield the slots in the last round of each configuration, on a common time axis."""
    last_rounds = {name: results.rounds_of(name, scenario)[-1:] for name in results.names}
    found = {name: use for name, last in last_rounds.items() for one in last if (use := _slot_use(one))}
    times = [use.seconds for use in found.values()]
    for name, use in found.items():
        caption = (
            "Rows are slots of the batch over time. Each color is a request, darker during its prefill. Blank areas"
            " are waste: slots that compute nothing."
            if use.is_traced
            else "Rows are slots of the batch over time. Each color is a request, from the first to the last token"
            " that the client received. Blank areas are waste or prefill."
        )
        yield plots.slots(name, use, min(max(times), _MAX_STRETCH * min(times)), caption)


def _slot_use(one: ReportedRound) -> SlotUse | None:
    use = None
    if one.step_trace and one.started is not None and one.ended is not None:
        use = read_step_trace(Path(one.step_trace), one.started, one.ended)
    answered = one.answered
    return use or slots_of_requests((request.due + request.ttft, request.ended) for request in answered)


def over_load(results: Results) -> Iterator[Plot]:
    """Yield throughput against latency at the rates that `lmi bench --find-rate` tried."""
    points = [
        LoadPoint(f"{trial.rate:.3g}/s", speed, latency)
        for trial in sorted(results.trials, key=lambda trial: trial.rate or 0.0)
        if trial.rate and (speed := trial.metrics.output_tokens_per_second)
        if (latency := trial.metrics.latency.p90)
    ]
    if len(points) > 1:
        caption = (
            "Each point is a request rate. Further right is more throughput, further down is lower latency. Where the"
            " line turns upwards, the server is saturated."
        )
        yield plots.load_curve("Throughput against latency", points, LATENCY_P90.title, caption)
