"""The JSON results of `lmi compare` and `lmi bench`, read with care: whatever a document lacks is empty.

A benchmark is read as a comparison of one configuration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from container.measure.compare.interval import Ratio
from container.measure.compare.summary import Median


def find(value: Any, *path: str) -> Any:
    """The value at a path of keys; None where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def objects(value: Any, *path: str) -> list[Mapping[str, Any]]:
    """The objects in the list at a path of keys."""
    found = find(value, *path)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list | tuple) else []


def figure(value: Any, *path: str) -> float:
    """The number at a path of keys; NaN where there is none."""
    found = find(value, *path)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else math.nan


def sum_known(values: Iterable[Any], *path: str) -> float:
    """The sum of the numbers at a path of keys; NaN where there is none."""
    found = [number for value in values if math.isfinite(number := figure(value, *path))]
    return sum(found) if found else math.nan


def text(value: Any, *path: str) -> str:
    """The text at a path of keys; empty where there is none."""
    found = find(value, *path)
    return "" if found is None else str(found)


@dataclass(frozen=True, slots=True)
class Results:
    """A document and the order of what is in it."""

    document: Mapping[str, Any]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Results:
        return cls(_from_bench(document) if "url" in document else document)

    @property
    def names(self) -> tuple[str, ...]:
        """Configurations, the baseline first."""
        listed = [text(one, "name") for one in objects(self.document, "configurations")]
        return tuple(dict.fromkeys(listed or [text(one, "configuration") for one in self.rounds()]))

    @property
    def scenarios(self) -> tuple[str, ...]:
        listed = [text(one, "name") for one in objects(self.document, "plan", "scenarios")]
        return tuple(dict.fromkeys(listed or [text(one, "scenario") for one in self.rounds()]))

    def rounds(self, **wanted: str) -> list[Mapping[str, Any]]:
        """Rounds with these values, by number."""
        found = [
            one
            for one in objects(self.document, "rounds")
            if all(text(one, key) == value for key, value in wanted.items())
        ]
        return sorted(found, key=lambda one: figure(one, "round"))

    def summary(self, name: str, scenario: str) -> Mapping[str, Any]:
        """The summary of a configuration in a scenario; empty where there is none."""
        found = (
            one
            for one in objects(self.document, "summary")
            if (text(one, "configuration"), text(one, "scenario")) == (name, scenario)
        )
        return next(found, {})

    def median(self, name: str, scenario: str, measure: str) -> Median | None:
        """A figure over the rounds."""
        found = find(self.summary(name, scenario), "figures", measure)
        value, low, high = (figure(found, key) for key in ("value", "low", "high"))
        if not math.isfinite(value):
            return None
        count = find(found, "count")
        return Median(value, _or(low, value), _or(high, value), count if isinstance(count, int) else 1)

    def ratio(self, name: str, scenario: str, measure: str) -> Ratio | None:
        """The ratio of a figure to that of the baseline."""
        found = find(self.summary(name, scenario), "ratios_to_first", measure)
        value, count = figure(found, "value"), find(found, "count")
        if not math.isfinite(value):
            return None
        low, high = _or(figure(found, "low"), 0.0), _or(figure(found, "high"), math.inf)
        return Ratio(value, low, high, count if isinstance(count, int) else 1)

    def times(self, name: str, scenario: str) -> Iterator[RequestTimes]:
        """The successful requests of all rounds."""
        for one in self.rounds(configuration=name, scenario=scenario):
            yield from request_times(one)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """A successful request, in seconds since the start of its round."""

    due: float
    first_token: float
    ended: float
    output_tokens: float

    @property
    def ttft(self) -> float:
        return self.first_token - self.due

    @property
    def tpot(self) -> float:
        """NaN for less than two tokens."""
        return (
            (self.ended - self.first_token) / (self.output_tokens - 1) if self.output_tokens > 1 else math.nan
        )

    @property
    def latency(self) -> float:
        return self.ended - self.due


def request_times(one_round: Mapping[str, Any]) -> list[RequestTimes]:
    """The successful requests of a round whose times are known."""
    found = [
        RequestTimes(*(figure(one, key) for key in ("due", "first_token", "ended", "output_tokens")))
        for one in objects(one_round, "requests")
        if not text(one, "error")
    ]
    return [one for one in found if math.isfinite(one.ttft) and math.isfinite(one.latency)]


def _or(value: float, otherwise: float) -> float:
    return value if math.isfinite(value) else otherwise


_BENCH_FIGURES = {
    "output_tokens_per_second": ("output_tokens_per_second",),
    **{f"{one}_{rank}": (one, rank) for one in ("ttft", "gap", "latency") for rank in ("p50", "p90")},
}


def _from_bench(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of `lmi bench` in the form of a comparison; each rate that it tried is a scenario."""
    url, load = text(document, "url"), text(document, "load")
    runs = [
        (f"{figure(trial, 'rate'):.4g} requests/s", trial)
        for trial in objects(document, "trials")
        if math.isfinite(figure(trial, "rate"))
    ]
    runs = sorted(runs, key=lambda run: figure(run[1], "rate")) or [(load, document)]
    workload = find(document, "scenario", "workload")
    return {
        **document,
        "plan": {
            "scenarios": [
                {"name": name, "workload": workload, "arrivals": {"rate": find(run, "rate")}}
                for name, run in runs
            ]
        },
        "rounds": [
            {"configuration": url, "scenario": name, "round": 1, "figures": find(run, "figures")}
            for name, run in runs
        ],
        "summary": [
            {
                "configuration": url,
                "scenario": name,
                "figures": {
                    key: {"value": find(run, "figures", *path), "count": 1}
                    for key, path in _BENCH_FIGURES.items()
                },
            }
            for name, run in runs
        ],
        "setting": {"versions": find(document, "versions"), **(find(document, "setting") or {})},
    }
