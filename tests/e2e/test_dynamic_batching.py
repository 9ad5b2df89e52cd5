"""engine=Python as a user meets it: batches over HTTP, streams, and a generating process that is killed."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.client import Ask, Client, Ending, Outcome
from tests.support.dynamic_server import RESTARTS, batches, generator_of
from tests.support.equality import compare
from tests.support.metrics import WAITING, wait_metrics
from tests.support.oracle import MAX_NEW_TOKENS, oracle
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
    answers = oracle(bundled_model, by_name(*_NAMES))
    before = batches(dynamic.metrics())
    with ThreadPoolExecutor(len(answers)) as pool:
        calls = [
            pool.submit(
                dynamic.stream if number % 2 else dynamic.generate,
                answer.text,
                max_new_tokens=MAX_NEW_TOKENS,
            )
            for number, answer in enumerate(answers)
        ]
        compared = [compare(answer, call.result()) for answer, call in zip(answers, calls, strict=True)]
    assert [comparison.difference for comparison in compared] == [""] * len(_NAMES)
    taken = batches(dynamic.metrics()).since(before)
    assert (taken.count, taken.requests) == (1, len(_NAMES))


def test_a_whole_answer_is_an_array(dynamic: Client) -> None:
    body = {"inputs": "Once upon a time,", "parameters": {"max_new_tokens": 3}}
    answer = dynamic.post("/invocations", body)
    assert answer.status == 200
    (element,) = answer.json()
    assert element["generated_text"]


def test_a_stream_comes_token_by_token_while_the_batch_runs(dynamic: Client) -> None:
    ask = Ask("Once upon a time,", {"max_new_tokens": 12, "ignore_eos_token": True}, stream=True)
    outcome = Outcome()
    times = []
    with dynamic.call("POST", "/invocations", ask.body()) as call:
        for _ in dynamic.follow(call, outcome):
            times.append(time.monotonic())
    assert outcome.ending is Ending.COMPLETE
    assert len(times) == len(outcome.token_ids) == 12
    assert times[-1] - times[0] > 0.05, "they came all at once"


def test_a_lone_request_waits_for_company_and_no_longer(dynamic: Client) -> None:
    before = dynamic.metrics()
    dynamic.generate("Hello", max_new_tokens=1)
    after = dynamic.metrics()
    waited = after["lmi_queue_seconds_sum"] - before["lmi_queue_seconds_sum"]
    assert _DELAY <= waited < _DELAY + 1.0


def test_a_full_batch_leaves_at_once(dynamic: Client) -> None:
    before = dynamic.metrics()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: dynamic.generate(text, max_new_tokens=1), ["Hello"] * 8))
    after = dynamic.metrics()
    taken = batches(after).since(batches(before))
    assert taken.requests == 8
    waited = after["lmi_queue_seconds_sum"] - before["lmi_queue_seconds_sum"]
    assert taken.count > 1 or waited < 8 * _DELAY, "somebody waited for the delay"


def test_differing_parameters_share_a_batch(dynamic: Client) -> None:
    prompt = "The three largest cities are"
    asked: list[dict[str, object]] = [
        {"max_new_tokens": 8},
        {"max_new_tokens": 6, "temperature": 1.2, "seed": 1},
        {"max_new_tokens": 6, "temperature": 1.2, "seed": 2},
        {"max_new_tokens": 10, "repetition_penalty": 1.6},
        {"max_new_tokens": 7, "temperature": 0.9, "top_k": 20, "top_p": 0.8, "seed": 3},
        {"max_new_tokens": 12, "stop_sequences": [","]},
    ]
    alone = [dynamic.generate(prompt, **parameters) for parameters in asked]
    before = batches(dynamic.metrics())
    with ThreadPoolExecutor(len(asked)) as pool:
        shared = list(pool.map(lambda parameters: dynamic.generate(prompt, **parameters), asked))
    taken = batches(dynamic.metrics()).since(before)
    assert (taken.count, taken.requests) == (1, len(asked))
    for one, other in zip(alone, shared, strict=True):
        assert one.ending is Ending.COMPLETE
        assert (one.token_ids, one.text, one.finish_reason) == (
            other.token_ids,
            other.text,
            other.finish_reason,
        )
    assert alone[1].token_ids != alone[2].token_ids
    assert alone[5].finish_reason == "stop_sequence"


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
