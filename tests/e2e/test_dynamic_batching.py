"""engine=Python as a user meets it: batches over HTTP, streams, and a generating process that is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import SECONDS
from tests.support.client import Ask, Client, Ending, Json, Outcome
from tests.support.dynamic_server import RESTARTS, batches, generator_of
from tests.support.metrics import RUNNING, WAITING, wait_metrics
from tests.support.oracle import FEW_TOKENS, few_answers
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.model]

_NAMES = ("capital", "haiku", "once", "code")
_DELAY = 0.2


@pytest.fixture
def dynamic(dynamic_server: Server) -> Client:
    return dynamic_server.client


def test_prompts_that_share_a_batch_equal_transformers_alone(dynamic: Client, bundled_model: Path) -> None:
    """Whole and streamed answers in one batch."""
    answers = few_answers(bundled_model, *_NAMES)
    # Until all of them are here, a batch runs that would take long.
    other = {"inputs": "Hello", "parameters": {"max_new_tokens": 3000, "ignore_eos_token": True}}
    with ThreadPoolExecutor(len(answers)) as pool:
        with dynamic.call("POST", "/invocations", other):
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


def stop_in_mid_stream(
    victim: psutil.Process, client: Client, stack: ExitStack
) -> tuple[Iterator[Json], Outcome]:
    """Stop the generating process while it writes an answer of 30 tokens, so that the batch runs when it is killed."""
    story = Ask("Once upon a time,", {"max_new_tokens": 30, "ignore_eos_token": True}, stream=True)
    while True:
        outcome = Outcome()
        records = client.follow(
            stack.enter_context(client.call("POST", "/invocations", story.body())), outcome
        )
        next(records)
        victim.suspend()
        client.metrics()  # what the process had sent before is taken in behind it
        if client.metrics()[RUNNING] == 1:
            return records, outcome
        victim.resume()  # all had been written by then: once more
        list(records)


def test_the_generating_process_is_killed_and_comes_back(dynamic_server: Server, dynamic: Client) -> None:
    client = dynamic
    victim = generator_of(dynamic_server)
    assert victim is not None
    before = client.metrics()[RESTARTS]
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        records, outcome = stop_in_mid_stream(victim, client, stack)
        waiting = pool.submit(client.generate, "The capital of France is", max_new_tokens=4)
        assert wait_metrics(client, lambda seen: seen[WAITING] == 1, SECONDS)[WAITING] == 1
        victim.send_signal(signal.SIGKILL)
        # `/ping` may be 503 before that: a process that is stopped makes no progress.
        wait_metrics(client, lambda seen: seen[RESTARTS] == before + 1, SECONDS)
        assert client.ping() == 503
        refused = client.post("/invocations", {"inputs": "Hello"})
        assert (refused.status, "retry-after" in refused.headers) == (503, True)
        list(records)
        assert (outcome.ending, len(outcome.token_ids)) == (Ending.COMPLETE, 30)
        assert waiting.result().ending is Ending.COMPLETE
    wait_until(lambda: client.ping() == 200)
    assert client.metrics()[RESTARTS] == before + 1
    assert generator_of(dynamic_server) not in (None, victim)
