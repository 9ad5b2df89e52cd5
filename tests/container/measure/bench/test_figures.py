"""Figures of a run, compared with hand calculations."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.measure.bench.figures import ErrorCount, Figures, Spread, failure, figures
from container.measure.bench.load import LoadRun, RequestOutcome
from container.measure.bench.slo import Slo
from container.measure.bench.workload import BenchRequest

REQUESTS = tuple(BenchRequest(index, "p", 5, 3) for index in range(4))
GOOD = (
    RequestOutcome(0, 0, 0.0, 0.001, (0.5, 0.6, 0.8), 0.9, 3, (1, 2, 3), None, ""),
    RequestOutcome(1, 1, 0.0, 0.002, (0.3, 0.4, 0.5), 0.5, 3, (1, 2, 3), 5, ""),
    RequestOutcome(2, 0, 0.9, 0.9, (1.0, 1.4, 2.0), 2.0, 3, (1, 2, 3), None, ""),
    RequestOutcome(3, 1, 0.5, 0.5, (0.9, 1.1, 1.2), 1.5, 3, (1, 2, 3), None, ""),
)
RUN = LoadRun(GOOD, wall_seconds=2.0, client_cpu_seconds=0.5, worst_lag_seconds=0.002)


def approximately(spread: Spread) -> object:
    return pytest.approx((spread.p50, spread.p90, spread.p99))


def test_figures_of_a_run_without_failures() -> None:
    found = figures(RUN, REQUESTS)
    assert (found.num_requests, found.num_errors, found.errors) == (4, 0, ())
    assert (found.output_tokens, found.output_tokens_per_second, found.requests_per_second) == (12, 6.0, 2.0)
    # From the scheduled time: 0.5, 0.3, 0.1, 0.4. The percentiles have ranks 1.5, 2.7 and 2.97 after sorting.
    assert approximately(found.ttft) == (0.35, 0.47, 0.497)
    # 0.1 0.2, 0.1 0.1, 0.4 0.6, 0.2 0.1, sorted: .1 .1 .1 .1 .2 .2 .4 .6. Ranks: 3.5, 6.3, 6.93.
    assert approximately(found.gap) == (0.15, 0.46, 0.586)
    # 0.9, 0.5, 1.1, 1.0, sorted: 0.5 0.9 1.0 1.1.
    assert approximately(found.latency) == (0.95, 1.07, 1.097)
    assert (found.latency.mean, found.latency.p95) == pytest.approx((0.875, 1.085))
    # 0.3, 0.2, 1.0 and 0.3 from the first to the last token, divided by two tokens.
    assert approximately(found.tpot) == (0.15, 0.395, 0.4895)
    assert found.client_cpu_share == 0.25
    assert math.isnan(found.goodput)
    assert found.client_limited == ""


def test_latencies_include_a_late_send() -> None:
    late = replace(GOOD[0], scheduled=0.1, sent=0.45)
    found = figures(replace(RUN, outcomes=(late,)), REQUESTS[:1])
    assert (found.ttft.p50, found.latency.p50) == pytest.approx((0.4, 0.8))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"error": "it broke"}, "it broke"),
        ({"output_tokens": 2}, "received 2 output tokens, requested 3"),
        ({"output_tokens": 4}, "received 4 output tokens, requested 3"),
        ({"prompt_tokens": 6}, "the server counts 6 prompt tokens, the client 5"),
        ({"token_times": ()}, "received no text"),
    ],
)
def test_a_failed_request_counts_only_as_an_error(change: dict[str, object], text: str) -> None:
    bad = replace(GOOD[2], **change)  # type: ignore[arg-type]
    assert failure(bad, REQUESTS[2]).startswith(text)
    found = figures(replace(RUN, outcomes=(*GOOD[:2], bad, GOOD[3])), REQUESTS)
    assert (found.num_errors, [one.count for one in found.errors]) == (1, [1])
    assert found.errors[0].text.startswith(text)
    assert (found.output_tokens, found.output_tokens_per_second, found.requests_per_second) == (9, 4.5, 1.5)
    assert approximately(found.latency) == (0.9, 0.98, 0.998)


def test_errors_are_counted_by_text_and_rare_ones_summed_up() -> None:
    requests = [BenchRequest(index, "p", 5, 3) for index in range(40)]
    texts = ["often"] * 20 + ["twice"] * 2 + [f"once {number}" for number in range(18)]
    outcomes = tuple(replace(GOOD[0], index=index, error=text) for index, text in enumerate(texts))
    found = figures(replace(RUN, outcomes=outcomes), requests)
    assert found.num_errors == sum(one.count for one in found.errors) == 40
    assert found.errors[:2] == (ErrorCount("often", 20), ErrorCount("twice", 2))
    assert found.errors[-1] == ErrorCount("11 other error messages", 11)
    assert len(found.errors) == 10


def test_without_a_successful_request_there_are_no_latencies() -> None:
    outcomes = tuple(replace(one, error="down") for one in GOOD)
    found = figures(replace(RUN, outcomes=outcomes, worst_lag_seconds=1.0), REQUESTS)
    assert (found.output_tokens, found.output_tokens_per_second, found.requests_per_second) == (0, 0.0, 0.0)
    assert all(
        math.isnan(value) for one in (found.ttft, found.gap, found.latency) for value in (one.p50, one.p99)
    )
    assert found.client_limited == ""


def test_responses_of_one_token_have_no_gaps_and_meet_any_tpot_limit() -> None:
    one = replace(GOOD[0], token_times=(0.5,), output_tokens=1)
    found = figures(replace(RUN, outcomes=(one,)), [BenchRequest(0, "p", 5, 1)], Slo(tpot=0.001))
    assert found.ttft == Spread(*[0.5] * 5)
    assert math.isnan(found.gap.p50)
    assert math.isnan(found.tpot.p50)
    assert found.share_within_slo == 1.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_mean_and_percentiles_match_numpy(values: list[float]) -> None:
    expected = (numpy.mean(values), *numpy.percentile(values, [50, 90, 95, 99]))
    assert astuple(Spread.of(values)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("slo", "num_within"),
    [
        (Slo(ttft=0.41), 3),
        (Slo(latency=1.0), 3),
        (Slo(tpot=0.2), 3),
        (Slo(ttft=0.41, latency=0.95), 1),
        (Slo(ttft=0.01), 0),
        (Slo(), 4),
    ],
)
def test_goodput_counts_requests_within_all_limits(slo: Slo, num_within: int) -> None:
    found = figures(RUN, REQUESTS, slo)
    assert (found.goodput, found.share_within_slo) == (num_within / 2.0, num_within / 4)


def test_a_timeout_counts_as_an_error_and_misses_the_limits() -> None:
    late = replace(GOOD[0], error="no complete response within 1 s", timed_out=True)
    found = figures(replace(RUN, outcomes=(late, *GOOD[1:])), REQUESTS, Slo(ttft=9.0))
    assert (found.num_errors, found.num_timeouts, found.share_within_slo) == (1, 1, 0.75)


def limited(**change: float) -> str:
    found: Figures = figures(replace(RUN, **change), REQUESTS)  # type: ignore[arg-type]
    return found.client_limited


def test_a_client_that_is_busy_most_of_the_time_is_reported() -> None:
    assert limited(client_cpu_seconds=1.59) == ""
    assert "busy for 80 % of the time" in limited(client_cpu_seconds=1.6)


def test_a_client_that_sends_late_is_reported() -> None:
    bound = 0.05 * 0.95  # of the median latency
    assert limited(worst_lag_seconds=bound - 0.001) == ""
    assert "up to 48 ms late" in limited(worst_lag_seconds=bound + 0.001)


def test_small_delays_do_not_count_as_late_for_short_requests() -> None:
    quick = tuple(replace(one, ended=one.scheduled + 0.05) for one in GOOD)
    assert limited(outcomes=quick, worst_lag_seconds=0.019) == ""  # type: ignore[arg-type]
    assert limited(outcomes=quick, worst_lag_seconds=0.021) != ""  # type: ignore[arg-type]
