"""Arrival processes: a closed loop of users, an open loop at a rate, a burst, or the times of a trace.

All of them are made of user sessions: a user arrives at some time and sends requests one after the other. Only users
of a closed loop send more than one request.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Protocol

from container.measure.bench.lengths import scale_count
from container.measure.bench.workload import BenchRequest


@dataclass(frozen=True, slots=True)
class UserSession:
    """Requests of one user. Each request is due when the previous one is answered."""

    start: float
    """Time at which the first request is due, in seconds since the start of the run."""
    requests: tuple[BenchRequest, ...]


class Arrivals(Protocol):
    """An arrival process."""

    def sessions(self, requests: Sequence[BenchRequest], seed: int) -> tuple[UserSession, ...]:
        """Return the sessions of a run, ordered by start."""

    def scaled(self, factor: float) -> Arrivals:
        """Return the same process with `factor` times the users or requests per second."""

    def describe(self, num_requests: int) -> str:
        """Describe the arrivals of `num_requests` requests in words."""


@dataclass(frozen=True, slots=True)
class Users:
    """A closed loop: each user sends its next request when the previous one is answered."""

    num_users: int
    ramp: float = math.inf
    """New users per second. If infinite, all users start at once."""

    def sessions(self, requests: Sequence[BenchRequest], seed: int) -> tuple[UserSession, ...]:
        """Request i belongs to user i % num_users."""
        return tuple(
            UserSession(user / self.ramp, tuple(requests[user :: self.num_users]))
            for user in range(min(self.num_users, len(requests)))
        )

    def scaled(self, factor: float) -> Users:
        return Users(scale_count(self.num_users, factor), self.ramp * factor)

    def describe(self, num_requests: int) -> str:
        joining = "" if math.isinf(self.ramp) else f" (ramp: {self.ramp:g} new users each second)"
        return f"{num_requests} requests by {self.num_users} users{joining}"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests at a rate, whether or not earlier requests are answered.

    Intervals follow a gamma distribution with the shape `burstiness`: 1 is a Poisson process, smaller values give
    bursts, larger values more regular intervals, and infinity a constant interval.
    """

    rate: float
    """Mean requests per second."""
    burstiness: float = 1.0

    def sessions(self, requests: Sequence[BenchRequest], seed: int) -> tuple[UserSession, ...]:
        """The first request is due at once."""
        rng = random.Random(f"{seed}/arrivals")
        starts = accumulate((self._interval(rng) for _ in requests[1:]), initial=0.0)
        return _single(starts, requests)

    def _interval(self, rng: random.Random) -> float:
        """Draw an interval, in seconds."""
        if math.isinf(self.burstiness):
            return 1 / self.rate
        return rng.gammavariate(self.burstiness, 1 / (self.burstiness * self.rate))

    def scaled(self, factor: float) -> OpenLoop:
        return OpenLoop(self.rate * factor, self.burstiness)

    def describe(self, num_requests: int) -> str:
        names = {1.0: "Poisson", math.inf: "constant"}
        process = names.get(self.burstiness, f"gamma, burstiness {self.burstiness:g}")
        return f"{num_requests} requests at {self.rate:.4g}/s ({process})"


@dataclass(frozen=True, slots=True)
class Burst:
    """All requests at once."""

    def sessions(self, requests: Sequence[BenchRequest], seed: int) -> tuple[UserSession, ...]:
        return _single(repeat(0.0), requests)

    def scaled(self, factor: float) -> Burst:
        return self

    def describe(self, num_requests: int) -> str:
        return f"{num_requests} requests at once"


@dataclass(frozen=True, slots=True)
class RecordedArrivals:
    """The arrivals of a trace."""

    times: tuple[float, ...]
    """Arrival times in seconds since the first request, ascending."""

    def sessions(self, requests: Sequence[BenchRequest], seed: int) -> tuple[UserSession, ...]:
        return _single(self.times, requests)

    def scaled(self, factor: float) -> RecordedArrivals:
        return RecordedArrivals(tuple(time / factor for time in self.times))

    def describe(self, num_requests: int) -> str:
        return f"{num_requests} requests over {self.times[num_requests - 1]:.4g} s, as recorded"


def _single(starts: Iterable[float], requests: Sequence[BenchRequest]) -> tuple[UserSession, ...]:
    """Return one session per request."""
    return tuple(UserSession(start, (request,)) for start, request in zip(starts, requests, strict=False))
