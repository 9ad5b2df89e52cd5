"""The figures of a run."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from container.measure.bench.load import LoadRun, RequestOutcome
from container.measure.bench.slo import Slo
from container.measure.bench.workload import BenchRequest

_MAX_ERRORS = 10
_MAX_CPU_SHARE = 0.8
"""Share of one core; a Python client cannot use more than one. In a queue that is busy for four fifths of the time,
requests wait four times as long as their own work takes."""
_MAX_LAG_SHARE = 0.05
"""Share of the median latency. A user that is always late by that much sends 5 % fewer requests."""
_MIN_LAG_SECONDS = 0.02
"""On a busy machine any process waits that long from time to time."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles in seconds; NaN without values.

    Linear interpolation between the two nearest ranks, as numpy's default: p50 of 1, 2, 3, 4 is 2.5.
    """

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            return cls(*[math.nan] * 5)
        if len(values) == 1:
            return cls(*[values[0]] * 5)
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        return cls(statistics.fmean(values), cuts[49], cuts[89], cuts[94], cuts[98])


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """One error text and the number of requests with it."""

    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run. Tokens, rates and times are of successful requests."""

    num_requests: int
    num_errors: int
    """Failed requests, those that took too long included."""
    num_timeouts: int
    errors: tuple[ErrorCount, ...]
    """At most ten, the most frequent first; the last may sum up the others."""
    wall_seconds: float
    output_tokens: int
    output_tokens_per_second: float
    requests_per_second: float
    ttft: Spread
    """From the time a request was due to its first token."""
    gap: Spread
    """Between successive tokens of a request, over all requests."""
    tpot: Spread
    """Time per output token after the first, by request."""
    latency: Spread
    """From the time a request was due to the end of its answer."""
    goodput: float
    """Successful requests a second that keep all latency limits; NaN without limits."""
    share_within_slo: float
    """Share of all requests; NaN without limits."""
    worst_lag_seconds: float
    client_cpu_share: float
    """CPU time of the client per wall time: 1.0 is one core."""
    client_limited: str
    """A sentence if the client itself may be the limit; else empty."""


def figures(run: LoadRun, requests: Sequence[BenchRequest], slo: Slo | None = None) -> Figures:
    """Compute the figures of a run of these requests. slo: latency limits.

    A request fails with an error, or when its number of output tokens or (if the server reports it) of prompt tokens is
    not the expected one.
    """
    failures = [failure(outcome, request) for outcome, request in zip(run.outcomes, requests, strict=True)]
    good = [outcome for outcome, failed in zip(run.outcomes, failures, strict=True) if not failed]
    errors = Counter(failed for failed in failures if failed)
    latency = Spread.of([outcome.latency for outcome in good])
    num_within = sum(within(outcome, slo) for outcome in good) if slo else math.nan
    cpu_share = run.client_cpu_seconds / run.wall_seconds
    output_tokens = sum(outcome.output_tokens for outcome in good)
    return Figures(
        num_requests=len(requests),
        num_errors=errors.total(),
        num_timeouts=sum(outcome.timed_out for outcome in run.outcomes),
        errors=_bounded(errors),
        wall_seconds=run.wall_seconds,
        output_tokens=output_tokens,
        output_tokens_per_second=output_tokens / run.wall_seconds,
        requests_per_second=len(good) / run.wall_seconds,
        ttft=Spread.of([outcome.ttft for outcome in good]),
        gap=Spread.of(
            [after - before for outcome in good for before, after in pairwise(outcome.token_times)]
        ),
        tpot=Spread.of([outcome.tpot for outcome in good if outcome.output_tokens > 1]),
        latency=latency,
        goodput=num_within / run.wall_seconds,
        share_within_slo=num_within / len(requests),
        worst_lag_seconds=run.worst_lag_seconds,
        client_cpu_share=cpu_share,
        client_limited=_client_limited(cpu_share, run.worst_lag_seconds, latency.p50),
    )


def within(outcome: RequestOutcome, slo: Slo) -> bool:
    """Whether a successful request keeps all limits. An answer of one token has no TPOT."""
    return (
        outcome.ttft <= slo.ttft
        and outcome.latency <= slo.latency
        and not (outcome.output_tokens > 1 and outcome.tpot > slo.tpot)
    )


def failure(outcome: RequestOutcome, request: BenchRequest) -> str:
    """Why a request failed; else empty."""
    if outcome.error:
        return outcome.error
    if outcome.output_tokens != request.output_tokens:
        return f"{outcome.output_tokens} output tokens came, {request.output_tokens} were requested"
    if outcome.prompt_tokens is not None and outcome.prompt_tokens != request.prompt_tokens:
        return (
            f"the server counts {outcome.prompt_tokens} prompt tokens, the client {request.prompt_tokens}; "
            "is this the tokenizer of the served model?"
        )
    if not outcome.token_times:
        return "no text came"
    return ""


def _bounded(errors: Counter[str]) -> tuple[ErrorCount, ...]:
    ordered = [ErrorCount(text, count) for text, count in errors.most_common()]
    if len(ordered) <= _MAX_ERRORS:
        return tuple(ordered)
    shown, rest = ordered[: _MAX_ERRORS - 1], ordered[_MAX_ERRORS - 1 :]
    return (*shown, ErrorCount(f"{len(rest)} other texts", sum(error.count for error in rest)))


def _client_limited(cpu_share: float, worst_lag: float, median_latency: float) -> str:
    if cpu_share >= _MAX_CPU_SHARE:
        return (
            f"the client itself was busy for {100 * cpu_share:.0f} % of the time, about as much as it can be: "
            "the server may be faster than these figures"
        )
    # Without a successful request there is no latency to compare with, and no figure that could be wrong.
    bound = max(_MIN_LAG_SECONDS, _MAX_LAG_SHARE * median_latency) if median_latency > 0 else math.inf
    if worst_lag > bound:
        return (
            f"the client itself was late by up to {1000 * worst_lag:.0f} ms (allowed here: {1000 * bound:.0f} ms): "
            "it competes for the processor, and the figures include its waiting"
        )
    return ""
