"""Scheduling policies as clients see them: the order in which waiting requests are served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.e2e.conftest import SECONDS, ChangeLimits
from tests.support.client import Call, Client
from tests.support.metrics import RUNNING, WAITING, wait_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.model]
GENERATED = "lmi_tokens_generated_total"
HEAVY, LIGHT = {"X-Tenant-Id": "heavy"}, {"X-Tenant-Id": "light"}


def body(max_new_tokens: int, **parameters: int) -> dict[str, object]:
    fixed = {"max_new_tokens": max_new_tokens, "ignore_eos_token": True}
    return {"inputs": "Once upon a time,", "parameters": {**fixed, **parameters}}


def order_of_service(
    client: Client, waiting: Sequence[tuple[str, Mapping[str, int], Mapping[str, str]]]
) -> list[str]:
    """Let requests arrive one after the other while one of the heavy tenant runs, then end that one.

    waiting: name, parameters and headers of each. Returns the names in the order of the responses.
    """
    served: list[str] = []

    def read(name: str, call: Call) -> None:
        assert call.read().status == 200
        served.append(name)

    with ThreadPoolExecutor(len(waiting)) as pool, ExitStack() as stack:
        with client.call("POST", "/invocations", body(2000), HEAVY):
            wait_metrics(client, lambda seen: seen[RUNNING] == 1, SECONDS)
            for number, (name, parameters, headers) in enumerate(waiting, start=1):
                call = client.call("POST", "/invocations", body(20, **parameters), headers)
                pool.submit(read, name, stack.enter_context(call))
                seen = wait_metrics(client, lambda seen, number=number: seen[WAITING] == number, SECONDS)
            tokens = seen[GENERATED]
            wait_metrics(client, lambda seen: seen[GENERATED] > tokens + 1, SECONDS)
        pool.shutdown()
    return served


def test_a_request_with_a_smaller_priority_value_starts_before_those_that_wait_longer(
    client: Client, limits: ChangeLimits
) -> None:
    assert limits(max_rolling_batch_size=1, scheduling_policy="priority").status == 200
    waiting = [("first", {}, {}), ("low", {"priority": 5}, {}), ("high", {"priority": -10}, {})]
    assert order_of_service(client, waiting) == ["high", "first", "low"]


def test_a_tenant_with_little_use_starts_before_the_waiting_requests_of_a_heavy_one(
    client: Client, limits: ChangeLimits
) -> None:
    assert limits(max_rolling_batch_size=1, scheduling_policy="fair").status == 200
    waiting = [("heavy 1", {}, HEAVY), ("heavy 2", {}, HEAVY), ("light", {}, LIGHT)]
    assert order_of_service(client, waiting) == ["light", "heavy 1", "heavy 2"]


def test_requests_are_served_in_order_of_arrival_by_default(client: Client, limits: ChangeLimits) -> None:
    assert limits(max_rolling_batch_size=1).json()["scheduling_policy"] == "fcfs"
    waiting = [("heavy", {}, HEAVY), ("high", {"priority": -10}, HEAVY), ("light", {}, LIGHT)]
    assert order_of_service(client, waiting) == ["heavy", "high", "light"]
