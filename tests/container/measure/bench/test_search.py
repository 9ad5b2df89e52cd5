"""The search for the highest rate, with servers computed by a formula."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.measure.bench.figures import figures
from container.measure.bench.load import LoadRun, RequestOutcome
from container.measure.bench.search import (
    RateTrial,
    best_trial,
    judge_rate,
    open_bound,
    search_rate,
    trials_table,
)
from container.measure.bench.slo import Slo
from tests.container.measure.conftest import make_bench_requests
from tests.support.examples import examples

REQUESTS = make_bench_requests(80, output_tokens=2)


def queue(rate: float, service: float, num_requests: int = 80) -> LoadRun:
    """Requests at constant intervals to a server that handles one at a time, in `service` seconds each."""
    outcomes = []
    free = 0.0
    for request in REQUESTS[:num_requests]:
        due = 0.0 if math.isinf(rate) else request.index / rate
        begin = max(due, free)
        free = begin + service
        times = (begin + service / 2, free)
        outcomes.append(RequestOutcome(request.index, 0, due, due, times, free, 2, (), None, ""))
    return LoadRun(tuple(outcomes), free, 0.0, 0.0)


def measure(rate: float, service: float, slo: Slo | None = None) -> RateTrial:
    run = queue(rate, service)
    return judge_rate(rate, run, figures(run, REQUESTS, slo), slo)


@examples(20)
@given(service=st.floats(0.001, 10.0), start=st.sampled_from([None, 0.02, 0.9, 1.1, 40.0]))
def test_the_saturation_rate_of_a_queue_is_found(service: float, start: float | None) -> None:
    trials = search_rate(lambda rate: measure(rate, service), start and start / service)
    best = best_trial(trials)
    assert len(trials) <= 12
    if start == 0.02:  # the limit of twelve runs is reached before the bisection ends
        assert best is trials[-1]
        return
    assert best is not None
    # A rate counts as too high if less than 90 % of its requests complete in time.
    assert 0.9 <= best.rate * service <= 1.12
    assert best.metrics.requests_per_second * service <= 1.0 + 1e-9


def test_a_rate_with_idle_time_ends_the_search_only_if_none_was_sustained() -> None:
    """Of a rate that leaves the server idle most of the time, lower ones are no better, unless one has passed."""

    def quick(limit: float, rate: float) -> RateTrial:
        trial = measure(rate, 0.01)
        return trial if rate <= limit else replace(trial, too_high="94 % within the limits")

    trials = search_rate(partial(quick, 2.8), 2.0)
    best = best_trial(trials)
    assert best is not None
    assert 2.8 / 1.05 <= best.rate <= 2.8
    assert len(search_rate(partial(quick, 1.0), 2.0)) == 1


def test_a_first_run_of_all_requests_at_once_gives_the_start_rate() -> None:
    trials = search_rate(lambda rate: measure(rate, 0.5), None)
    assert (trials[0].rate, trials[0].too_high) == (math.inf, "all at once")
    assert trials[1].rate == pytest.approx(2.0)


def test_a_search_that_ends_early_says_what_is_known() -> None:
    found = search_rate(partial(measure, service=0.5), 1.5)
    assert open_bound(found) == ""
    for trials, known in (
        (search_rate(partial(measure, service=1e-4), 1.0), "at least 86.5 requests/s"),
        (search_rate(partial(measure, service=0.5), 1.5)[:1], "at least 1.50 requests/s"),
    ):
        assert open_bound(trials) == known
    low, high = measure(1.0, 0.5), measure(4.0, 0.5)
    assert open_bound((high,)) == "below 4.00 requests/s"
    assert open_bound((replace(high, rate=math.inf),)) == "", "all requests at once show nothing"
    assert open_bound((low, high)) == "below 4.00 requests/s, at least 1.00"


def test_limits_are_found_below_saturation() -> None:
    def busy(rate: float) -> RateTrial:
        """Measure a server that saturates at 100 requests/s and slows down with the load."""
        run = queue(min(rate, 1e6), 1 / (100 - min(rate, 99)) if rate < 99 else 1.0, 80)
        return judge_rate(rate, run, figures(run, REQUESTS, Slo(latency=0.025)), Slo(latency=0.025))

    best = best_trial(search_rate(busy, 10.0))
    assert best is not None
    assert best.too_high == ""
    # 1 / (100 - rate) is at most 25 ms, and no queue forms below 50.
    assert 45 <= best.rate <= 52.5


def failing(rate: float, failed: slice, error: str) -> RateTrial:
    """Measure a server that fails these requests."""
    run = queue(rate, 0.1)
    outcomes = list(run.outcomes)
    outcomes[failed] = [replace(one, error=error) for one in outcomes[failed]]
    run = replace(run, outcomes=tuple(outcomes))
    return judge_rate(rate, run, figures(run, REQUESTS), None)


def test_the_search_ends_when_even_single_requests_fail() -> None:
    trials = search_rate(lambda rate: failing(rate, slice(3, 4), "it broke"), 8.0)
    assert best_trial(trials) is None
    assert trials[0].too_high == "1 of 80 requests failed: it broke"
    assert all(later.rate < earlier.rate for earlier, later in pairwise(trials))
    # The last one has 0.36 requests in flight.
    assert [round(trial.rate, 2) for trial in trials] == [8.0, 5.33, 3.56]


def test_a_server_that_fails_all_requests_ends_the_search_immediately() -> None:
    assert len(search_rate(lambda rate: failing(rate, slice(None), "down"), None)) == 1


@pytest.mark.parametrize(
    ("rate", "num_requests", "too_high"),
    [
        (5.0, 80, ""),
        (10.0, 80, ""),
        (12.0, 80, "requests queue up: only 81.7 % completed in time"),
        (5.0, 4, ""),
        (10.0, 4, "too few requests: all were sent within 300 ms, and one takes 100 ms"),
        (100.0, 80, "too few requests: all were sent within 790 ms, and one takes 955 ms"),
        (5.0, 1, "too few requests: all were sent within 0 ms, and one takes 100 ms"),
    ],
)
def test_a_rate_is_sustained_if_no_queue_forms_in_a_long_enough_run(
    rate: float, num_requests: int, too_high: str
) -> None:
    run = queue(rate, 0.1, num_requests)
    assert judge_rate(rate, run, figures(run, REQUESTS[:num_requests]), None).too_high == too_high


def test_runs_are_listed_with_the_reason_why_a_rate_is_too_high() -> None:
    slo = Slo(latency=0.21)
    trials = tuple(measure(rate, 0.1, slo) for rate in (math.inf, 20.0, 5.0))
    rows = trials_table("a title", trials).rows
    assert [row[0] for row in rows] == ["all at once", "20.0/s", "5.00/s"]
    assert [row[-1] for row in rows] == [
        "all at once",
        "3.8 % within the limits, less than 95.0 %",
        "sustained",
    ]
    assert rows[2][1:] == ("5.03", "10.1", "50.0 ms", "50.0 ms", "100 ms", "100.0 %", "sustained")
