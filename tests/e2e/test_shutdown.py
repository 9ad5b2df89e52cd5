"""SIGTERM: what runs is finished or told, nothing is left, exit code 0."""

from __future__ import annotations

import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.client import Client, Ending
from tests.support.metrics import RUNNING, WAITING, wait_metrics
from tests.support.server import StartServer, properties_text

pytestmark = [pytest.mark.e2e, pytest.mark.model]


def assert_refused(client: Client) -> None:
    """Once `/ping` is no longer 200, a new request is told so, or finds nobody listening any more."""
    deadline = time.monotonic() + 10.0
    while client.ping() == 200 and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        late = client.post("/invocations", {"inputs": "Late"})
    except (OSError, http.client.HTTPException):
        return
    assert late.status == 503


def test_sigterm_under_load_finishes_what_runs(bundled_model: Path, start_server: StartServer) -> None:
    server = start_server(properties_text(bundled_model, max_rolling_batch_size=4))
    client = server.client
    asked = {"max_new_tokens": 30, "ignore_eos_token": True}
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(client.stream, "Once", **asked) for _ in range(3)]
        calls += [pool.submit(client.generate, "Once", **asked) for _ in range(3)]
        busy = wait_metrics(client, lambda seen: seen[RUNNING] + seen[WAITING] == 6, 20.0)
        assert busy[RUNNING] + busy[WAITING] == 6
        server.process.terminate()
        assert_refused(client)
        code = server.wait_exit(30.0)
        outcomes = [call.result() for call in calls]
    assert code == 0, server.log_tail()
    assert [
        outcome.ending for outcome in outcomes if outcome.ending not in {Ending.COMPLETE, Ending.TOLD}
    ] == []
    complete = [outcome for outcome in outcomes if outcome.ending is Ending.COMPLETE]
    assert len(complete) >= 4, [outcome.describe() for outcome in outcomes]
    assert all(len(outcome.token_ids) == 30 for outcome in complete)
    assert server.left_over() == []
