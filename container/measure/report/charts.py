"""The plots of a report: what each shows of the results, and the sentence that says how to read it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from container.measure.compare.interval import Ratio
from container.measure.compare.summary import MEASURES
from container.measure.report import plots
from container.measure.report.plots import Bar, GainPart, LoadPoint
from container.measure.report.results import Results, figure, find, objects, request_times, text
from container.measure.report.slots import SlotUse, read_step_trace, slots_of_requests
from container.measure.report.svg import Plot

THROUGHPUT, LATENCY = "output_tokens_per_second", "latency_p90"
_RATIOS = (THROUGHPUT, "ttft_p50", "gap_p50", LATENCY)
_TITLES = {measure.key: measure.title for measure in MEASURES}
_MAX_STRETCH = 3.0
"""The time axis of slots ends at so many times the shortest run, so that this one can be seen."""


def throughput(results: Results, scenario: str) -> Iterator[Plot]:
    """Bars, and ratios to the first configuration; nothing for a single configuration."""
    found = [
        Bar(name, place, seen.value, seen.low, seen.high, _round_values(results, name, scenario))
        for place, name in enumerate(results.names)
        if (seen := results.median(name, scenario, THROUGHPUT))
    ]
    if len(found) < 2:
        return
    yield plots.bars(
        "Throughput",
        "output tokens/s",
        found,
        "A longer bar is better: it ends at the median of the rounds, which are the dots; the line spans them all.",
        0.5,
    )
    ratios = {
        _TITLES[key]: [
            Bar(name, place, ratio.value, *_ends(ratio))
            for place, name in enumerate(results.names)
            if place and (ratio := results.ratio(name, scenario, key))
        ]
        for key in _RATIOS
    }
    if any(ratios.values()):
        yield plots.ratios(
            f"Compared with {results.names[0]}",
            ratios,
            "A point is a ratio to the first configuration, its line the 95 % interval: a line that does not cross 1 is"
            " a difference; more tokens/s are better, and so is less time.",
            0.5,
        )


def _ends(ratio: Ratio) -> tuple[float, float]:
    """The interval; for one round, which leaves everything open, the point itself."""
    return (ratio.low, ratio.high) if ratio.count > 1 else (ratio.value, ratio.value)


def _round_values(results: Results, name: str, scenario: str) -> tuple[float, ...]:
    rounds = results.rounds(configuration=name, scenario=scenario)
    return tuple(value for one in rounds if math.isfinite(value := figure(one, "figures", THROUGHPUT)))


def attribution(results: Results, scenario: str) -> Iterator[Plot]:
    """A waterfall of the throughput, from the configuration with the least to the one with the most."""
    parts = [
        GainPart(text(part, "cause"), figure(part, "ratio", "value"))
        for part in reversed(objects(results.document, "attribution"))
        if (text(part, "scenario"), text(part, "measure")) == (scenario, THROUGHPUT)
        if figure(part, "ratio", "value") > 0 and not find(part, "is_sum")
    ]
    if parts:
        caption = (
            "A bar starts where the one above ends: the factors multiply up to the whole gain at the bottom."
        )
        yield plots.waterfall("Where the gain in throughput comes from", parts, caption)


_DISTRIBUTIONS = {
    "ttft": ("Time to first token", "whose first token came within the time below"),
    "tpot": ("Time per output token", "whose further tokens took at most the time below each"),
    "latency": ("Latency", "that were complete within the time below"),
}


def distributions(results: Results, scenario: str) -> Iterator[Plot]:
    """The times of all requests of all rounds."""
    for key, (title, meaning) in _DISTRIBUTIONS.items():
        found: dict[int, list[float]] = {}
        for place, name in enumerate(results.names):
            values = [getattr(one, key) for one in results.times(name, scenario)]
            if values := [value for value in values if math.isfinite(value)]:
                found[place] = values
        if found:
            caption = f"The height of a curve is the share of requests {meaning}: further left is faster."
            yield plots.distribution(title, found, caption)


def slot_rows(results: Results, scenario: str) -> Iterator[Plot]:
    """The slots in the last round of each configuration, on one time axis."""
    found = {name: use for name in results.names if (use := _slot_use(results, name, scenario))}
    times = [use.seconds for use in found.values()]
    for name, use in found.items():
        caption = (
            "Rows are slots of the batch, time goes to the right, a colour is a request, dark where its prompt is"
            " computed; blank is waste: a slot that computes nothing."
            if use.is_traced
            else "Rows are slots of the batch, time goes to the right, a colour is a request from its first token to"
            " its last as the client saw it; blank is waste, or a prompt being computed."
        )
        yield plots.slots(name, use, min(max(times), _MAX_STRETCH * min(times)), caption)


def _slot_use(results: Results, name: str, scenario: str) -> SlotUse | None:
    for last in reversed(results.rounds(configuration=name, scenario=scenario)):
        trace, began, ended = text(last, "step_trace"), figure(last, "began"), figure(last, "ended")
        use = read_step_trace(Path(trace), began, ended) if trace else None
        return use or slots_of_requests((one.first_token, one.ended) for one in request_times(last))
    return None


def over_load(results: Results) -> Iterator[Plot]:
    """Throughput against latency, where several scenarios differ in nothing but their arrivals."""
    scenarios = objects(results.document, "plan", "scenarios")
    if any(find(one, "workload") != find(scenarios[0], "workload") for one in scenarios):
        return
    found: dict[int, list[LoadPoint]] = {}
    for place, name in enumerate(results.names):
        for one in scenarios:
            speed, latency = (results.median(name, text(one, "name"), key) for key in (THROUGHPUT, LATENCY))
            if speed and latency:
                found.setdefault(place, []).append(LoadPoint(_load_name(one), speed.value, latency.value))
    if any(len(points) > 1 for points in found.values()):
        caption = (
            "Each point is a load: further right is more throughput, further down are faster answers; where a"
        )
        caption += " line turns upwards the server is saturated."
        yield plots.load_curve("Throughput against latency", found, _TITLES[LATENCY], caption)


def _load_name(scenario: Mapping[str, Any]) -> str:
    rate, users = figure(scenario, "arrivals", "rate"), figure(scenario, "arrivals", "num_users")
    if math.isfinite(rate):
        return f"{rate:.3g}/s"
    return f"{users:.0f} users" if math.isfinite(users) else text(scenario, "name")
