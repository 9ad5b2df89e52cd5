"""Requests whose clients disconnect are aborted and free their resources."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import SECONDS
from tests.support.client import Client
from tests.support.metrics import BLOCKS_FREE, RUNNING, STEPS, Metrics, wait_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.model]

LONG = {"max_new_tokens": 6000, "ignore_eos_token": True}


def running(metrics: Metrics) -> bool:
    return metrics[RUNNING] == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_while_running_frees_the_blocks(client: Client, stream: bool) -> None:
    idle = wait_metrics(client, lambda seen: seen.idle, SECONDS)
    assert idle.idle, idle.describe()
    body = {"inputs": "Once upon a time,", "parameters": LONG, "stream": stream}
    with client.call("POST", "/invocations", body):
        busy = wait_metrics(client, running, SECONDS)
        assert busy[RUNNING] == 1
        assert busy[BLOCKS_FREE] < idle[BLOCKS_FREE]
    after = wait_metrics(client, lambda metrics: metrics.idle, SECONDS)
    assert after.idle, after.describe()
    # Far fewer than the 6,000 steps of the whole response.
    assert after[STEPS] - busy[STEPS] < 3000
