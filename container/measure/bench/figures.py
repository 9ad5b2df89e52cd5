"""Latency, throughput and goodput of a run."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from container.measure.bench.load import LoadRun, RequestOutcome
from container.measure.bench.slo import Slo
from container.measure.bench.workload import BenchRequest

_MAX_ERRORS = 10
_MAX_CPU_SHARE = 0.8
"""Share of one core; a Python client cannot use more than one. At 80 % utilization, work in a queue waits four times
as long as it takes."""
_MAX_LAG_SHARE = 0.05
"""Share of the median latency. A user that is always this late sends 5 % fewer requests."""
_MIN_LAG_SECONDS = 0.02
"""Shorter lags are not reported: on a busy machine any process waits this long from time to time."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles in seconds; NaN without values.

    Percentiles are interpolated linearly between the two nearest ranks (numpy's default): p50 of 1, 2, 3, 4 is 2.5.
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


STATISTICS = tuple(field.name for field in fields(Spread))


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """An error text and the number of requests that failed with it."""

    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run. Tokens, rates and times count successful requests only."""

    num_requests: int
    num_errors: int
    """Failed requests, including those that timed out."""
    num_timeouts: int
    errors: tuple[ErrorCount, ...]
    """At most ten errors, most frequent first. The last one may sum up the rest."""
    wall_seconds: float
    output_tokens: int
    output_tokens_per_second: float
    requests_per_second: float
    ttft: Spread
    """Time to first token, from the time at which the request was due."""
    gap: Spread
    """Time between successive tokens of a request (ITL), over all requests."""
    tpot: Spread
    """Time per output token after the first, one value per request."""
    latency: Spread
    """Time from when the request was due to the end of its response."""
    goodput: float
    """Successful requests per second that meet all latency limits; NaN without limits."""
    share_within_slo: float
    """Share of all requests that meet the latency limits; NaN without limits."""
    worst_lag_seconds: float
    client_cpu_share: float
    """CPU time of the client divided by wall time: 1.0 is one core."""
    client_limited: str
    """Warning that the client may be the bottleneck; empty if it is not."""


def figures(run: LoadRun, requests: Sequence[BenchRequest], slo: Slo | None = None) -> Figures:
    """Compute the figures of a run of these requests. slo: latency limits.

    A request has failed if it has an error, or if its number of output tokens or (when the server reports it) of prompt
    tokens is not the expected one.
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
    """Return whether a successful request meets all limits. A response of one token has no TPOT."""
    return (
        outcome.ttft <= slo.ttft
        and outcome.latency <= slo.latency
        and not (outcome.output_tokens > 1 and outcome.tpot > slo.tpot)
    )


def failure(outcome: RequestOutcome, request: BenchRequest) -> str:
    """Return why a request failed; empty if it succeeded."""
    if outcome.error:
        return outcome.error
    if outcome.output_tokens != request.output_tokens:
        return f"received {outcome.output_tokens} output tokens, requested {request.output_tokens}"
    if outcome.prompt_tokens is not None and outcome.prompt_tokens != request.prompt_tokens:
        return (
            f"the server counts {outcome.prompt_tokens} prompt tokens, the client {request.prompt_tokens}; "
            "is this the tokenizer of the served model?"
        )
    if not outcome.token_times:
        return "received no text"
    return ""


def _bounded(errors: Counter[str]) -> tuple[ErrorCount, ...]:
    ordered = [ErrorCount(text, count) for text, count in errors.most_common()]
    if len(ordered) <= _MAX_ERRORS:
        return tuple(ordered)
    shown, rest = ordered[: _MAX_ERRORS - 1], ordered[_MAX_ERRORS - 1 :]
    return (*shown, ErrorCount(f"{len(rest)} other error messages", sum(error.count for error in rest)))


def _client_limited(cpu_share: float, worst_lag: float, median_latency: float) -> str:
    if cpu_share >= _MAX_CPU_SHARE:
        return (
            f"the load client was busy for {100 * cpu_share:.0f} % of the time, close to its limit: "
            "the server may be faster than these figures"
        )
    # Without a successful request there is no latency to compare with, and no figure to distort.
    bound = max(_MIN_LAG_SECONDS, _MAX_LAG_SHARE * median_latency) if median_latency > 0 else math.inf
    if worst_lag > bound:
        return (
            f"the load client sent requests up to {1000 * worst_lag:.0f} ms late (allowed: {1000 * bound:.0f} ms): "
            "it competes for CPU time, and the figures include this delay"
        )
    return ""
