"""engine=Python over HTTP: dynamic batches, whole and streamed responses, and their metrics."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.conftest import SECONDS
from tests.support.client import Client, Ending
from tests.support.metrics import RUNNING, WAITING, batches, wait_metrics
from tests.support.oracle import FEW_TOKENS, few_answers
from tests.support.server import Server

pytestmark = [pytest.mark.e2e, pytest.mark.model]

_NAMES = ("capital", "haiku", "once", "code")


@pytest.fixture
def dynamic(dynamic_server: Server) -> Client:
    return dynamic_server.client


def test_prompts_in_one_batch_equal_transformers_unbatched(dynamic: Client, bundled_model: Path) -> None:
    """The batch mixes whole and streamed responses."""
    answers = few_answers(bundled_model, *_NAMES)
    # A long batch runs until all requests are queued.
    long_request = {"inputs": "Hello", "parameters": {"max_new_tokens": 3000, "ignore_eos_token": True}}
    with ThreadPoolExecutor(len(answers)) as pool:
        with dynamic.call("POST", "/invocations", long_request):
            assert wait_metrics(dynamic, lambda seen: seen[RUNNING] == 1, SECONDS)[RUNNING] == 1
            before = batches(dynamic.metrics())
            calls = [
                pool.submit(
                    dynamic.stream if number % 2 else dynamic.generate,
                    answer.text,
                    max_new_tokens=FEW_TOKENS,
                    ignore_eos_token=True,
                )
                for number, answer in enumerate(answers)
            ]
            waiting = wait_metrics(dynamic, lambda seen: seen[WAITING] == len(answers), SECONDS)
            assert waiting[WAITING] == len(answers)
        outcomes = [call.result() for call in calls]
    for answer, outcome in zip(answers, outcomes, strict=True):
        assert outcome.ending is Ending.COMPLETE, outcome.describe()
        assert tuple(outcome.token_ids) == answer.token_ids_ignoring_eos
        assert outcome.text == answer.output_ignoring_eos
    taken = batches(dynamic.metrics()).since(before)
    assert (taken.count, taken.requests) == (1, len(_NAMES))


def test_a_single_request_waits_for_the_batch_delay(dynamic: Client) -> None:
    before = dynamic.metrics()
    dynamic.generate("Hello", max_new_tokens=1)
    metrics = dynamic.metrics()
    assert metrics["lmi_queue_seconds_sum"] - before["lmi_queue_seconds_sum"] >= 0.2
    # Batch sizes are counted, and there is no KV cache.
    assert metrics.families["lmi_batch_size"] == "histogram"
    assert metrics["lmi_requests_running"] == metrics["lmi_requests_waiting"] == 0
    assert not any(name.startswith("lmi_kv_") for name in metrics.samples)
