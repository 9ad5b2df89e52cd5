"""Arrival times of requests: open loop, users, bursts, and scaling."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.measure.bench.arrivals import Arrivals, Burst, OpenLoop, RecordedArrivals, Users
from tests.container.measure.conftest import make_bench_requests
from tests.support.examples import examples

REQUESTS = make_bench_requests(4000)


def intervals(arrivals: Arrivals, seed: int = 0) -> list[float]:
    """Seconds between the starts of consecutive sessions."""
    starts = [session.start for session in arrivals.sessions(REQUESTS, seed)]
    return [later - earlier for earlier, later in pairwise(starts)]


@examples(10)
@given(
    rate=st.floats(0.01, 1000),
    burstiness=st.sampled_from([0.25, 0.5, 1.0, 4.0, 50.0]),
    seed=st.integers(0, 5),
)
def test_intervals_have_the_mean_and_deviation_of_a_gamma_distribution(
    rate: float, burstiness: float, seed: int
) -> None:
    found = intervals(OpenLoop(rate, burstiness), seed)
    assert min(found) >= 0
    # The standard deviation is the mean divided by the root of the shape. 4,000 intervals estimate both well enough.
    assert statistics.fmean(found) * rate == pytest.approx(1, abs=5 / math.sqrt(burstiness * len(found)))
    assert statistics.stdev(found) * rate == pytest.approx(1 / math.sqrt(burstiness), rel=0.15)


def test_constant_intervals_are_equal_and_the_first_request_is_due_immediately() -> None:
    sessions = OpenLoop(4.0, math.inf).sessions(REQUESTS[:5], 0)
    assert [session.start for session in sessions] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [session.requests for session in sessions] == [(one,) for one in REQUESTS[:5]]


def test_arrivals_depend_on_the_seed() -> None:
    assert intervals(OpenLoop(4.0), 1) == intervals(OpenLoop(4.0), 1) != intervals(OpenLoop(4.0), 2)


def test_users_share_the_requests_and_a_ramp_starts_them_one_by_one() -> None:
    requests = tuple(make_bench_requests(7))
    at_once = Users(3).sessions(requests, 0)
    assert [session.start for session in at_once] == [0.0] * 3
    assert [session.requests for session in at_once] == [requests[user::3] for user in range(3)]
    assert [session.start for session in Users(3, ramp=2.0).sessions(requests, 0)] == [0.0, 0.5, 1.0]
    assert len(Users(50).sessions(requests, 0)) == 7


@pytest.mark.parametrize(
    ("arrivals", "scaled", "text"),
    [
        (Users(32), Users(16), "8 requests by 32 users"),
        (Users(32, 1.0), Users(16, 0.5), "8 requests by 32 users (ramp: 1 new users each second)"),
        (OpenLoop(4.0), OpenLoop(2.0), "8 requests at 4/s (Poisson)"),
        (OpenLoop(4.0, math.inf), OpenLoop(2.0, math.inf), "8 requests at 4/s (constant)"),
        (OpenLoop(4.0, 0.5), OpenLoop(2.0, 0.5), "8 requests at 4/s (gamma, burstiness 0.5)"),
        (Burst(), Burst(), "8 requests at once"),
        (
            RecordedArrivals((0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.5)),
            RecordedArrivals((0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0)),
            "8 requests over 7.5 s, as recorded",
        ),
    ],
)
def test_half_the_scale_has_half_the_users_or_requests_per_second(
    arrivals: Arrivals, scaled: Arrivals, text: str
) -> None:
    assert arrivals.scaled(0.5) == scaled
    assert arrivals.describe(8) == text
