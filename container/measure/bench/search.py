"""The highest rate that a server sustains, by bisection."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from container.measure.bench.figures import Figures
from container.measure.bench.load import LoadRun
from container.measure.bench.slo import Slo
from container.measure.numbers import number, percent, seconds
from container.measure.output import Table

_MAX_TRIALS = 12
_PRECISION = 1.05
"""Ratio of the lowest rate that is too high to the highest sustained one at which the search ends."""
_STEP = 1.5
"""Factor between rates until one is sustained and one is not."""
_MIN_SHARE_WITHIN = 0.95
"""Share of the requests that must keep the latency limits."""
_MIN_ANSWERED = 0.9
"""Answers per request, in the last three quarters of the time in which requests are sent."""
_MIN_IN_FLIGHT = 0.5
"""Requests, on average. With less, each is nearly alone, and a lower rate makes none faster."""
_MIN_LATENCIES = 4
"""Time in which requests are sent, in latencies. A shorter run shows no queue."""


@dataclass(frozen=True, slots=True)
class RateTrial:
    """One run of the search."""

    rate: float
    """Offered requests a second; infinite: all at once."""
    figures: Figures
    too_high: str
    """Why this rate is too high; empty if the server sustains it."""

    @property
    def hopeless(self) -> bool:
        """Whether lower rates fail too: few requests overlap, or none succeeded."""
        return bool(self.too_high) and not self.rate * self.figures.latency.p50 >= _MIN_IN_FLIGHT


def search_rate(measure: Callable[[float], RateTrial], start: float | None) -> tuple[RateTrial, ...]:
    """Measure rates until the highest sustained one is known to 5 %, at most twelve.

    start: the first rate; None: the requests a second of a run of all requests at once, which comes first.
    """
    trials: list[RateTrial] = []
    if start is None:
        trials.append(measure(math.inf))
        start = trials[0].figures.requests_per_second
    rate = start
    while rate > 0 and len(trials) < _MAX_TRIALS:
        trials.append(measure(rate))
        low = max((trial.rate for trial in trials if not trial.too_high), default=0.0)
        # A rate above one that is too high may pass by chance; the lowest failure above the best rate counts.
        high = min((trial.rate for trial in trials if trial.too_high and trial.rate > low), default=math.inf)
        if high <= low * _PRECISION or trials[-1].hopeless:
            break
        if math.isinf(high):
            rate = low * _STEP
        elif low == 0:
            rate = high / _STEP
        else:
            rate = math.sqrt(low * high)
    return tuple(trials)


def best_trial(trials: tuple[RateTrial, ...]) -> RateTrial | None:
    """The highest sustained rate; None if none was."""
    sustained = [trial for trial in trials if not trial.too_high]
    return max(sustained, key=lambda trial: trial.rate, default=None)


def judge(rate: float, run: LoadRun, figures: Figures, slo: Slo | None) -> RateTrial:
    """Whether the server sustains a rate.

    It does if no request fails, 95 % of them keep the limits, and requests are answered as fast as they come.
    """
    too_high = ""
    if math.isinf(rate):
        too_high = "all at once"
    elif figures.num_errors:
        too_high = f"{figures.num_errors} of {figures.num_requests} requests failed: {figures.errors[0].text}"
    elif slo and figures.share_within_slo < _MIN_SHARE_WITHIN:
        too_high = (
            f"{percent(figures.share_within_slo)} within the limits, below {percent(_MIN_SHARE_WITHIN)}"
        )
    else:
        too_high = _backlog(run)
    return RateTrial(rate, figures, too_high)


def _backlog(run: LoadRun) -> str:
    """Why requests may pile up; empty if they are answered as fast as they come.

    Both are counted in the last three quarters of the time in which requests came, answers later by the median latency
    of the first quarter. So all are answered where latencies stay the same.
    """
    due = sorted(outcome.scheduled for outcome in run.outcomes)
    span = due[-1] - due[0]
    first, last = due[0] + span / 4, due[-1]
    delay = statistics.median(outcome.latency for outcome in run.outcomes if outcome.scheduled <= first)
    if span < _MIN_LATENCIES * delay:
        return f"too few requests to tell: sent within {seconds(span)}, one takes {seconds(delay)}"
    num_due = sum(first <= time <= last for time in due)
    answered = sum(first + delay <= outcome.ended <= last + delay for outcome in run.outcomes) / num_due
    return f"requests pile up: {percent(answered)} are answered" if answered < _MIN_ANSWERED else ""


def trials_table(title: str, trials: tuple[RateTrial, ...]) -> Table:
    """All runs, in their order."""
    rows = tuple(
        (
            "all at once" if math.isinf(trial.rate) else f"{number(trial.rate)}/s",
            number(trial.figures.requests_per_second),
            number(trial.figures.output_tokens_per_second),
            *(seconds(one.p95) for one in (trial.figures.ttft, trial.figures.tpot, trial.figures.latency)),
            percent(trial.figures.share_within_slo),
            trial.too_high or "sustained",
        )
        for trial in trials
    )
    header = (
        *("offered", "requests/s", "output tokens/s", "TTFT p95", "TPOT p95", "latency p95"),
        *("within limits", "result"),
    )
    return Table(title, header, rows)
