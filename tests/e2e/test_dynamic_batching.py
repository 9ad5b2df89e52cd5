"""engine=Python over HTTP: dynamic batches, streams, and a generating process that is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import SECONDS
from tests.support.client import Client, ClientRequest, Ending, Json, Outcome
from tests.support.dynamic_server import RESTARTS, batches, find_generator
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
    after = dynamic.metrics()
    waited = after["lmi_queue_seconds_sum"] - before["lmi_queue_seconds_sum"]
    assert waited >= _DELAY


def test_metrics_include_batch_sizes_but_no_kv_cache(dynamic: Client) -> None:
    dynamic.generate("Hello", max_new_tokens=2)
    metrics = dynamic.metrics()
    assert metrics.families["lmi_batch_size"] == "histogram"
    assert metrics["lmi_requests_running"] == metrics["lmi_requests_waiting"] == 0
    assert not any(name.startswith("lmi_kv_") for name in metrics.samples)


def suspend_in_mid_stream(
    victim: psutil.Process, client: Client, stack: ExitStack
) -> tuple[Iterator[Json], Outcome]:
    """Suspend the generating process while it streams 30 tokens, so that the batch is in flight when it is killed."""
    story = ClientRequest("Once upon a time,", {"max_new_tokens": 30, "ignore_eos_token": True}, stream=True)
    while True:
        outcome = Outcome()
        records = client.follow(
            stack.enter_context(client.call("POST", "/invocations", story.body())), outcome
        )
        next(records)
        victim.suspend()
        client.metrics()  # processed after everything that the process had sent before
        if client.metrics()[RUNNING] == 1:
            return records, outcome
        victim.resume()  # the stream had already finished: try again
        list(records)


@pytest.mark.long
def test_a_killed_generating_process_is_restarted(dynamic_server: Server, dynamic: Client) -> None:
    client = dynamic
    victim = find_generator(dynamic_server)
    assert victim is not None
    before = client.metrics()[RESTARTS]
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        records, outcome = suspend_in_mid_stream(victim, client, stack)
        waiting = pool.submit(client.generate, "The capital of France is", max_new_tokens=4)
        assert wait_metrics(client, lambda seen: seen[WAITING] == 1, SECONDS)[WAITING] == 1
        victim.send_signal(signal.SIGKILL)
        # `/ping` may return 503 earlier, because a suspended process makes no progress.
        wait_metrics(client, lambda seen: seen[RESTARTS] == before + 1, SECONDS)
        assert client.ping() == 503
        refused = client.post("/invocations", {"inputs": "Hello"})
        assert (refused.status, "retry-after" in refused.headers) == (503, True)
        list(records)
        assert (outcome.ending, len(outcome.token_ids)) == (Ending.COMPLETE, 30)
        assert waiting.result().ending is Ending.COMPLETE
    wait_until(lambda: client.ping() == 200)
    assert client.metrics()[RESTARTS] == before + 1
    assert find_generator(dynamic_server) not in (None, victim)
