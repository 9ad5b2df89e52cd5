"""`/metrics` has the metrics that operators need, with correct values."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import SECONDS
from tests.support.client import Client
from tests.support.metrics import wait_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.model]


def test_a_request_increments_the_counters(client: Client) -> None:
    before = client.metrics()
    outcome = client.generate("Once upon a time,", max_new_tokens=7, ignore_eos_token=True)
    after = client.metrics()
    assert len(outcome.token_ids) == 7
    assert after["lmi_tokens_generated_total"] - before["lmi_tokens_generated_total"] == 7
    assert after["lmi_steps_total"] - before["lmi_steps_total"] >= 7
    for name in ("lmi_time_to_first_token_seconds", "lmi_time_per_output_token_seconds", "lmi_queue_seconds"):
        assert after[f"{name}_count"] > before[f"{name}_count"]


def test_a_request_ended_by_a_stop_string_counts_as_finished(client: Client) -> None:
    parameters = {"max_new_tokens": 40, "ignore_eos_token": True}
    body = {"inputs": "Once upon a time,", "parameters": parameters}
    text = client.post("/invocations", body).json()["generated_text"]
    before = wait_metrics(client, lambda seen: seen.idle, SECONDS)
    stopped = client.post("/invocations", {**body, "parameters": {**parameters, "stop": [text[20:26]]}})
    assert len(stopped.json()["generated_text"]) <= 20
    after = wait_metrics(client, lambda seen: seen.idle, SECONDS)
    for name, difference in (
        ("lmi_requests_finished_total", 1),
        ("lmi_requests_aborted_total", 0),
        ("lmi_time_per_output_token_seconds_count", 1),
    ):
        assert after[name] - before[name] == difference, name
