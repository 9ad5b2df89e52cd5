"""Search for the highest rate that a server sustains, by bisection."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from container.measure.bench.figures import Figures
from container.measure.bench.load import LoadRun
from container.measure.bench.slo import Slo
from container.measure.numbers import format_number, percent, seconds
from container.measure.output import Table

MAX_TRIALS = 12
_PRECISION = 1.05
"""Ratio of the lowest unsustained to the highest sustained rate at which the search ends."""
_STEP = 1.5
"""Factor between successive rates until one rate is sustained and one is not."""
_MIN_SHARE_WITHIN = 0.95
"""Share of the requests that must meet the latency limits."""
_MIN_ANSWERED = 0.9
"""Responses per request in the last three quarters of the time in which requests are sent."""
_MIN_IN_FLIGHT = 0.5
"""Mean requests in flight. With fewer, requests hardly overlap, and a lower rate makes none of them faster."""
_MIN_LATENCIES = 4
"""Time in which requests are sent, as a multiple of the latency. A shorter run does not show a queue."""


@dataclass(frozen=True, slots=True)
class RateTrial:
    """One run of the search."""

    rate: float
    """Offered requests per second; infinite if all requests are sent at once."""
    metrics: Figures
    too_high: str
    """Reason why this rate is too high; empty if the server sustains it."""

    @property
    def hopeless(self) -> bool:
        """Whether lower rates would fail too, because few requests overlap or none succeeded."""
        return bool(self.too_high) and not self.rate * self.metrics.latency.p50 >= _MIN_IN_FLIGHT


def search_rate(measure: Callable[[float], RateTrial], start: float | None) -> tuple[RateTrial, ...]:
    """Run at most twelve trials, until the highest sustained rate is known to 5 %.

    start: the first rate. If None, a burst is measured first, and its requests per second are the first rate.
    """
    trials: list[RateTrial] = []
    if start is None:
        trials.append(measure(math.inf))
        start = trials[0].metrics.requests_per_second
    rate = start
    while rate > 0 and len(trials) < MAX_TRIALS:
        trials.append(measure(rate))
        if _is_over(trials):
            break
        low, high = _bounds(trials)
        if math.isinf(high):
            rate = low * _STEP
        elif low == 0:
            rate = high / _STEP
        else:
            rate = math.sqrt(low * high)
    return tuple(trials)


def open_bound(trials: tuple[RateTrial, ...]) -> str:
    """Return what is known of the highest rate if the search ended before it was found; else an empty string."""
    low, high = _bounds(trials)
    if _is_over(trials) or (not low and math.isinf(high)):
        return ""
    if math.isinf(high):
        return f"at least {format_number(low)} requests/s"
    return f"below {format_number(high)} requests/s" + (f", at least {format_number(low)}" if low else "")


def _is_over(trials: Sequence[RateTrial]) -> bool:
    """Return whether the highest rate is found, or no lower rate is worth a trial."""
    low, high = _bounds(trials)
    return high <= low * _PRECISION or (not low and trials[-1].hopeless)


def _bounds(trials: Sequence[RateTrial]) -> tuple[float, float]:
    """Return the best sustained rate, or 0, and the lowest rate above it that is too high, or infinity."""
    low = max((trial.rate for trial in trials if not trial.too_high), default=0.0)
    # A rate may pass by chance although a lower one failed: only failures above the best rate count.
    high = min((trial.rate for trial in trials if trial.too_high and trial.rate > low), default=math.inf)
    return low, high


def best_trial(trials: tuple[RateTrial, ...]) -> RateTrial | None:
    """Return the trial with the highest sustained rate; None if no rate was sustained."""
    sustained = [trial for trial in trials if not trial.too_high]
    return max(sustained, key=lambda trial: trial.rate, default=None)


def judge_rate(rate: float, run: LoadRun, figures: Figures, slo: Slo | None) -> RateTrial:
    """Decide whether the server sustains a rate.

    It does if no request fails, 95 % of them meet the limits, and requests are answered as fast as they arrive.
    """
    too_high = ""
    if math.isinf(rate):
        too_high = "all at once"
    elif figures.num_errors:
        too_high = f"{figures.num_errors} of {figures.num_requests} requests failed: {figures.errors[0].text}"
    elif slo and figures.share_within_slo < _MIN_SHARE_WITHIN:
        too_high = (
            f"{percent(figures.share_within_slo)} within the limits, less than {percent(_MIN_SHARE_WITHIN)}"
        )
    else:
        too_high = _backlog(run)
    return RateTrial(rate, figures, too_high)


def _backlog(run: LoadRun) -> str:
    """Return why requests may pile up; empty if they are answered as fast as they arrive.

    Requests are counted in the last three quarters of the time in which they were due. Responses are counted in the
    same window, shifted by the median latency of the first quarter: with constant latencies, all are answered.
    """
    due = sorted(outcome.scheduled for outcome in run.outcomes)
    span = due[-1] - due[0]
    first, last = due[0] + span / 4, due[-1]
    delay = statistics.median(outcome.latency for outcome in run.outcomes if outcome.scheduled <= first)
    if span < _MIN_LATENCIES * delay:
        return f"too few requests: all were sent within {seconds(span)}, and one takes {seconds(delay)}"
    num_due = sum(first <= time <= last for time in due)
    answered = sum(first + delay <= outcome.ended <= last + delay for outcome in run.outcomes) / num_due
    return (
        f"requests queue up: only {percent(answered)} completed in time" if answered < _MIN_ANSWERED else ""
    )


def trials_table(title: str, trials: tuple[RateTrial, ...]) -> Table:
    """Return a table of all trials, in order."""
    rows = tuple(
        (
            "all at once" if math.isinf(trial.rate) else f"{format_number(trial.rate)}/s",
            format_number(trial.metrics.requests_per_second),
            format_number(trial.metrics.output_tokens_per_second),
            *(seconds(one.p95) for one in (trial.metrics.ttft, trial.metrics.tpot, trial.metrics.latency)),
            percent(trial.metrics.share_within_slo),
            trial.too_high or "sustained",
        )
        for trial in trials
    )
    header = (
        *("offered", "requests/s", "output tokens/s", "TTFT p95", "TPOT p95", "latency p95"),
        *("within limits", "result"),
    )
    return Table(title, header, rows)
