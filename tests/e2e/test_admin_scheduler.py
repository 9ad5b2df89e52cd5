"""`/admin/scheduler` on a running engine: limits change between two steps and no request is lost."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack

import psutil
import pytest

from tests.e2e.conftest import SCHEDULER, SECONDS, ChangeLimits, current_limits
from tests.support.client import Client
from tests.support.metrics import RUNNING, WAITING, wait_metrics
from tests.support.server import ADMIN_HEADERS, ADMIN_TOKEN, Server

pytestmark = [pytest.mark.e2e, pytest.mark.model]


def test_the_batch_size_can_shrink_and_grow_under_load(client: Client, limits: ChangeLimits) -> None:
    before = current_limits(client)
    assert before["max_rolling_batch_size"] == 32
    assert limits(max_rolling_batch_size=2, scheduling_policy="fair").status == 200
    body = {"inputs": "Once upon a time,", "parameters": {"max_new_tokens": 60, "ignore_eos_token": True}}
    with ExitStack() as stack:
        calls = [stack.enter_context(client.call("POST", "/invocations", body)) for _ in range(6)]
        wait_metrics(client, lambda seen: (seen[RUNNING] == 2 and seen[WAITING] > 0) or seen.idle, SECONDS)
        answer = limits(max_rolling_batch_size=6, max_queued_tokens=4000)
        assert answer.json() == {
            **before,
            "max_rolling_batch_size": 6,
            "scheduling_policy": "fair",
            "max_queued_tokens": 4000,
        }
        wait_metrics(client, lambda seen: seen[RUNNING] > 2 or seen.idle, SECONDS)
        answers = [call.read() for call in calls]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1


def test_a_full_queue_can_be_enlarged(client: Client, limits: ChangeLimits) -> None:
    assert limits(max_rolling_batch_size=1, job_queue_size=1).status == 200
    body = {"inputs": "Once upon a time,", "parameters": {"max_new_tokens": 2000, "ignore_eos_token": True}}
    with ExitStack() as stack:
        stack.enter_context(client.call("POST", "/invocations", body))
        wait_metrics(client, lambda seen: seen[RUNNING] == 1, SECONDS)
        stack.enter_context(client.call("POST", "/invocations", body))
        wait_metrics(client, lambda seen: seen[WAITING] == 1, SECONDS)
        refused = client.post("/invocations", {"inputs": "Hello"})
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        assert client.ping() == 200
        assert limits(max_rolling_batch_size=4, job_queue_size=10).status == 200
        assert client.post("/invocations", {"inputs": "Hello"}).status == 200


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Return the environment of the process. Empty if the process has exited: some are short-lived."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.environ()
    return {}


def test_the_admin_token_is_required_and_does_not_leak(paged_server: Server) -> None:
    """The token is in no child process's environment and not in the log."""
    client = paged_server.client
    assert client.get(SCHEDULER).status == 401
    assert client.get(SCHEDULER, headers={"Authorization": "Bearer wrong"}).status == 401
    assert client.get(SCHEDULER, headers=ADMIN_HEADERS).status == 200
    children = [process for process in paged_server.processes() if process.pid != paged_server.pid]
    assert children
    environments = [environment for process in children if (environment := environment_of(process))]
    assert environments
    assert not [environment for environment in environments if "LMI_ADMIN_TOKEN" in environment]
    assert ADMIN_TOKEN not in paged_server.log()
