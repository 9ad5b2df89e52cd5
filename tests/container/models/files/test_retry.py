"""Limits of retries, and waits for a remote that throttles."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import pytest

from container.models.errors import RemoteUnreachable
from container.models.files import retry
from container.models.files.retry import (
    RetryBudget,
    Throttled,
    ThrottleWaits,
    retry_after_seconds,
    seconds_for_attempts,
)


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits, which take no time."""
    slept: list[float] = []
    monkeypatch.setattr(retry, "sleep", slept.append)
    return slept


def allowed(budget: RetryBudget, began: float, retry_after: float = 0.0) -> int:
    """Return the number of the first failure after which there is no retry. Its delays take no time."""
    budget.stop.wait = lambda timeout=None: False  # type: ignore[method-assign]
    failures = 1
    while budget.wait_for_retry(began, failures, retry_after):
        failures += 1
    return failures


@pytest.mark.parametrize("seconds", [3.0, 60.0])
def test_a_second_attempt_of_the_longest_duration_is_within_the_limit(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: now))
    budget = RetryBudget(seconds_for_attempts(seconds))
    now += seconds
    assert allowed(budget, began=1000.0) > 1
    now += seconds + 2
    assert allowed(budget, began=1000.0) == 1


@pytest.mark.parametrize("attempts", [1, 3, 100])
def test_a_number_of_attempts_replaces_the_time_limit(attempts: int) -> None:
    assert allowed(RetryBudget(attempts=attempts), time.monotonic() - 1000) == attempts


def test_a_short_wait_is_a_delay_and_a_long_one_is_left_to_the_caller() -> None:
    delays: list[float] = []

    def wait(timeout: float | None = None) -> bool:
        delays.append(timeout or 0.0)
        return False

    budget = RetryBudget(600.0)
    budget.stop.wait = wait  # type: ignore[assignment, method-assign]
    now = time.monotonic()
    assert budget.wait_for_retry(now, 1, 4.0)
    assert not budget.wait_for_retry(now, 1, 6.0)
    assert delays == [4.0]


def failing(seconds: float, times: int, max_waits: int = 3) -> Callable[[], str]:
    """Return a function that fails the first `times` times."""
    failures = iter(range(times))

    def call() -> str:
        if next(failures, None) is not None:
            raise Throttled("the store throttles", seconds, max_waits)
        return "done"

    return call


def test_a_throttled_call_is_repeated_after_the_wait(slept: list[float]) -> None:
    notes: list[str] = []
    assert ThrottleWaits(notes.append).run(failing(9.0, times=3)) == "done"
    assert slept == [9.0] * 3
    assert notes == ["note: the store throttles; waiting"] * 3


@pytest.mark.parametrize(
    ("seconds", "max_waits", "num_waits"), [(60.0, 3, 3), (61.0, 3, 0), (1.0, 0, 0), (1.0, 19, 19)]
)
def test_waits_are_limited(seconds: float, max_waits: int, num_waits: int, slept: list[float]) -> None:
    with pytest.raises(Throttled):
        ThrottleWaits(lambda note: None).run(failing(seconds, 99, max_waits))
    assert slept == [seconds] * num_waits


def test_progress_allows_further_waits(slept: list[float]) -> None:
    waits = ThrottleWaits(lambda note: None)
    for _ in range(10):
        waits.progress()
        assert waits.wait(Throttled("", 1.0))
    assert not waits.wait(RemoteUnreachable("no network"))
    assert slept == [1.0] * 10


@pytest.mark.parametrize(
    ("text", "seconds"), [("9", 9.0), (" 120 ", 120.0), ("0", 0.0), ("-1", 0.0), ("soon", 0.0), ("", 0.0)]
)
def test_retry_after_is_read(text: str, seconds: float) -> None:
    assert retry_after_seconds({"retry-after": text}) == seconds
    assert retry_after_seconds({}) == 0.0


def test_retry_after_may_be_a_date() -> None:
    for seconds in (30, -30):
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
        assert max(0, seconds - 20) <= retry_after_seconds({"retry-after": date}) <= max(0, seconds)


def failing_requests(times: int, received: list[int], *, with_bytes: bool) -> Callable[[], str]:
    """Return a request that fails the first `times` times, each time after it received a byte if `with_bytes`."""
    failures = iter(range(times))

    def request() -> str:
        if next(failures, None) is None:
            return "done"
        if with_bytes:
            received.append(1)
        raise Throttled("the store throttles", 0.0)

    return request


@pytest.mark.parametrize(("with_bytes", "done"), [(True, True), (False, False)])
def test_received_bytes_reset_the_count_of_failures(with_bytes: bool, done: bool) -> None:
    received: list[int] = []
    budget = RetryBudget(attempts=3)
    budget.stop.wait = lambda timeout=None: False  # type: ignore[method-assign]
    request = failing_requests(5, received, with_bytes=with_bytes)
    if done:
        assert budget.run(request, lambda: len(received)) == "done"
        return
    with pytest.raises(Throttled) as caught:
        budget.run(request, lambda: len(received))
    assert caught.value.max_waits == 0, "no attempt is left"


def test_bytes_that_were_received_before_do_not_reset_the_count_of_failures() -> None:
    """As from a server without ranges, which sends a file from its beginning each time."""
    sizes = iter([0, 5, 3, 5, 4, 5])
    budget = RetryBudget(attempts=3)
    budget.stop.wait = lambda timeout=None: False  # type: ignore[method-assign]
    with pytest.raises(Throttled):
        budget.run(failing_requests(9, [], with_bytes=False), lambda: next(sizes))
    assert list(sizes) == [4, 5], "there were more or fewer than three attempts"
