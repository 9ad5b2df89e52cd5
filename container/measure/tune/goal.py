"""The goal of `lmi tune`: limits to meet, and one objective to optimize."""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from container.measure.bench.figures import STATISTICS, Figures
from container.measure.bench.workload import BenchError
from container.measure.compare.summary import Measure
from container.measure.numbers import NO_VALUE, SECONDS, format_number, percent, read_quantity, seconds
from lmi_server.values.nearest import nearest

ERRORS = "errors"
_RATES = {"tokens/s": "output_tokens_per_second", "requests/s": "requests_per_second", "goodput": "goodput"}
_TIMES = ("ttft", "gap", "tpot", "latency")
_TIMES_OF = {f"{statistic} {time}": f"{time}.{statistic}" for time in _TIMES for statistic in STATISTICS}
METRICS: Mapping[str, Measure] = {
    measure.key: measure
    for measure in (
        *(Measure(name, name, "/s", operator.attrgetter(field)) for name, field in _RATES.items()),
        Measure(ERRORS, ERRORS, "%", lambda figures: figures.num_errors / figures.num_requests),
        *(Measure(name, name, "s", operator.attrgetter(field)) for name, field in _TIMES_OF.items()),
    )
}
"""Metrics by name: rates, the share of failed requests, and times in seconds, as `lmi bench` reports them."""
_ACCEPTED = (
    f"{', '.join(_RATES)}, {ERRORS}, and {'/'.join(STATISTICS)} of {'/'.join(_TIMES)}, such as p95 ttft"
)
_EXAMPLE = "limits and one objective, such as p95 ttft < 500ms, errors < 1%, max tokens/s"
_UNITS: Mapping[str, Mapping[str, float]] = {"s": SECONDS, "%": {"%": 100}, "/s": {"/s": 1, "": 1}}
_BOUNDS = {"s": "a time above 0, such as 500ms or 2s", "%": "a share, such as 1%", "/s": "a number above 0"}
_LIMIT = re.compile(r"(.+?)\s*(<=|>=|<|>)\s*(.*)")
_OBJECTIVE = re.compile(r"(max|min)\s+(.+)")
_KEEPS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on one figure."""

    measure: Measure
    relation: str
    """`<` or `<=`; for rates `>` or `>=`."""
    bound: float
    """Bound in seconds, per second, or as a share."""

    def excess(self, value: float) -> float:
        """Return by how much a value misses the bound, as a share of it: 0 if it meets the limit, infinite for NaN."""
        if _KEEPS[self.relation](value, self.bound):
            return 0.0
        if math.isnan(value):
            return math.inf
        return max(abs(value - self.bound) / (self.bound or 1.0), sys.float_info.epsilon)

    def __str__(self) -> str:
        return f"{self.measure.title} {self.relation} {format_value(self.measure, self.bound)}"


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits and objective that define the best configuration. Values are keyed by metric name."""

    limits: tuple[Limit, ...]
    objective: Measure
    """Metric to optimize: rates are maximized, times are minimized."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The objective and its trade-offs: the limited figures, or else a latency or the throughput."""
        limited = (limit.measure for limit in self.limits if limit.measure.unit != "%")
        found = {measure.key: measure for measure in (self.objective, *limited)}
        if len(found) == 1:
            other = METRICS["p95 latency" if self.objective.higher_is_better else "tokens/s"]
            found[other.key] = other
        return tuple(found.values())

    def values(self, figures: Figures) -> dict[str, float]:
        """Return the values of `measures` and the share of failed requests."""
        return {measure.key: measure.of(figures) for measure in (*self.measures, METRICS[ERRORS])}

    def excess(self, values: Mapping[str, float]) -> float:
        """Return the sum of the excesses over all limits."""
        return sum(limit.excess(values[limit.measure.key]) for limit in self.limits)

    def rank(self, values: Mapping[str, float]) -> tuple[float, float]:
        """Return a sort key: values that meet all limits first, then the closest; among equals the best objective."""
        return self.excess(values), minimized_value(self.objective, values)

    def __str__(self) -> str:
        best = f"{'max' if self.objective.higher_is_better else 'min'} {self.objective.title}"
        return ", ".join([*map(str, self.limits), best])


def minimized_value(measure: Measure, values: Mapping[str, float]) -> float:
    """Return the value to minimize: negated if higher is better, infinite for NaN or a rate of 0."""
    value = values[measure.key]
    if math.isnan(value) or (measure.higher_is_better and not value):
        return math.inf
    return -value if measure.higher_is_better else value


def format_value(measure: Measure, value: float) -> str:
    """Format a value with its unit."""
    if math.isnan(value):
        return NO_VALUE
    match measure.unit:
        case "s":
            return seconds(value)
        case "%":
            return percent(value) if value else "0 %"
    return format_number(value)


def parse_goal(text: str) -> Goal:
    """Parse the value of `--goal`. Without a limit on errors, no request may fail. Raises BenchError."""
    limits: list[Limit] = []
    objectives: list[Measure] = []
    for part in text.split(","):
        clause = " ".join(part.lower().split())
        if match := _LIMIT.fullmatch(clause):
            limits.append(_limit(*match.groups()))
        elif match := _OBJECTIVE.fullmatch(clause):
            objectives.append(_objective(*match.groups()))
        else:
            raise BenchError(f"--goal: not a limit or an objective (got {clause}); allowed: {_EXAMPLE}")
    if len(objectives) != 1:
        raise BenchError(
            f"--goal: exactly one objective is required, not {len(objectives)} (got {text}); allowed: {_EXAMPLE}"
        )
    if all(limit.measure.key != ERRORS for limit in limits):
        limits.append(Limit(METRICS[ERRORS], "<=", 0.0))
    return Goal(tuple(limits), objectives[0])


def _measure(name: str) -> Measure:
    if name not in METRICS:
        near = nearest(name, METRICS)
        hint = f"; did you mean {near}?" if near else ""
        raise BenchError(f"--goal: unknown metric (got {name}){hint}; allowed: {_ACCEPTED}")
    return METRICS[name]


def _objective(direction: str, name: str) -> Measure:
    measure = _measure(name)
    wanted = "max" if measure.higher_is_better else "min"
    if direction != wanted or name == ERRORS:
        allowed = f"{ERRORS} < 1%" if name == ERRORS else f"{wanted} {name}"
        raise BenchError(f"--goal: unknown objective (got {direction} {name}); allowed: {allowed}")
    return measure


def _limit(name: str, relation: str, text: str) -> Limit:
    measure = _measure(name)
    if (relation[0] == ">") != measure.higher_is_better:
        allowed = "> or >=" if measure.higher_is_better else "< or <="
        raise BenchError(f"--goal: wrong direction (got {name} {relation} {text}); allowed: {name} {allowed}")
    bound = read_quantity(text, _UNITS[measure.unit])
    if not bound > 0 and not (bound == 0 and relation == "<=" and measure.unit == "%"):
        raise BenchError(f"--goal: {name}: not a valid bound (got {text}); allowed: {_BOUNDS[measure.unit]}")
    return Limit(measure, relation, bound)
