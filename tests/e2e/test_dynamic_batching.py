"""engine=Python as a user meets it: batches over HTTP, streams, and a generating process that is killed."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.client import Ask, Client, Ending, Outcome
from tests.support.dynamic_server import RESTARTS, batches, generator_of
from tests.support.metrics import WAITING, wait_metrics
from tests.support.oracle import FEW_TOKENS, oracle
from tests.support.prompts import by_name
from tests.support.server import Server

pytestmark = [pytest.mark.e2e, pytest.mark.model]

_NAMES = ("capital", "haiku", "once", "code")
_DELAY = 0.2


@pytest.fixture
def dynamic(dynamic_server: Server) -> Client:
    return dynamic_server.client


def test_prompts_that_share_a_batch_equal_transformers_alone(dynamic: Client, bundled_model: Path) -> None:
    """Whole and streamed answers in one batch."""
    answers = oracle(bundled_model, by_name(*_NAMES), FEW_TOKENS)
    before = batches(dynamic.metrics())
    with ThreadPoolExecutor(len(answers)) as pool:
        calls = [
            pool.submit(
                dynamic.stream if number % 2 else dynamic.generate,
                answer.text,
                max_new_tokens=FEW_TOKENS,
                ignore_eos_token=True,
            )
            for number, answer in enumerate(answers)
        ]
        outcomes = [call.result() for call in calls]
    for answer, outcome in zip(answers, outcomes, strict=True):
        assert outcome.ending is Ending.COMPLETE, outcome.describe()
        assert tuple(outcome.token_ids) == answer.unending_token_ids
        assert outcome.text == answer.unending_output
    taken = batches(dynamic.metrics()).since(before)
    assert (taken.count, taken.requests) == (1, len(_NAMES))


def test_a_lone_request_waits_for_company(dynamic: Client) -> None:
    before = dynamic.metrics()
    dynamic.generate("Hello", max_new_tokens=1)
    after = dynamic.metrics()
    waited = after["lmi_queue_seconds_sum"] - before["lmi_queue_seconds_sum"]
    assert waited >= _DELAY


def test_metrics_are_those_of_an_engine_without_a_cache_of_its_own(dynamic: Client) -> None:
    dynamic.generate("Hello", max_new_tokens=2)
    metrics = dynamic.metrics()
    assert metrics.families["lmi_batch_size"] == "histogram"
    assert metrics["lmi_requests_running"] == metrics["lmi_requests_waiting"] == 0
    assert not any(name.startswith("lmi_kv_") for name in metrics.samples)


def test_the_generating_process_is_killed_and_comes_back(dynamic_server: Server, dynamic: Client) -> None:
    client = dynamic
    victim = generator_of(dynamic_server)
    assert victim is not None
    before = client.metrics()[RESTARTS]
    story = Ask("Once upon a time,", {"max_new_tokens": 30, "ignore_eos_token": True}, stream=True)
    outcome = Outcome()
    with ThreadPoolExecutor(1) as pool, client.call("POST", "/invocations", story.body()) as call:
        records = client.follow(call, outcome)
        next(records)
        victim.send_signal(signal.SIGSTOP)  # so that the batch still runs when it is killed
        waiting = pool.submit(client.generate, "The capital of France is", max_new_tokens=4)
        assert wait_metrics(client, lambda seen: seen[WAITING] == 1, 60.0)[WAITING] == 1
        victim.send_signal(signal.SIGKILL)
        client.wait_not_ready()
        refused = client.post("/invocations", {"inputs": "Hello"})
        assert (refused.status, "retry-after" in refused.headers) == (503, True)
        list(records)
        assert (outcome.ending, len(outcome.token_ids)) == (Ending.COMPLETE, 30)
        assert waiting.result().ending is Ending.COMPLETE
    assert client.ping() == 200
    assert client.metrics()[RESTARTS] == before + 1
    assert generator_of(dynamic_server) not in (None, victim)
