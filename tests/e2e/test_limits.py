"""What the server does at its limits (a full queue, a request that takes too long, a body too large) and at its end.

One small server, with contiguous attention, on the port that `SAGEMAKER_BIND_TO_PORT` names.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import SECONDS
from tests.support.client import Client, Ending, Outcome
from tests.support.metrics import RUNNING, WAITING, wait_metrics
from tests.support.oracle import FEW_TOKENS, few_answers
from tests.support.server import Server, properties_text

pytestmark = [pytest.mark.e2e, pytest.mark.model]

LONG = {"max_new_tokens": 6000, "ignore_eos_token": True}


@pytest.fixture(scope="module")
def small_server(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    text = properties_text(
        bundled_model,
        job_queue_size=2,
        max_rolling_batch_size=2,
        paged_attention=False,
    )
    text += "max_request_size=100000\n"
    folder = tmp_path_factory.mktemp("small")
    environment = {"SAGEMAKER_BIND_TO_PORT": "{port}"}
    with Server(folder, text, environment=environment, pass_port=False) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def small(small_server: Server) -> Client:
    """The small server's client, once nothing runs there any more."""
    metrics = wait_metrics(small_server.client, lambda seen: seen.idle, SECONDS)
    assert metrics.idle, metrics.describe()
    return small_server.client


def test_it_listens_where_sagemaker_says(small_server: Server) -> None:
    assert small_server.client.ping() == 200
    assert f":{small_server.port}" in small_server.log()


def test_contiguous_attention_answers_as_transformers(small: Client, bundled_model: Path) -> None:
    (expected,) = few_answers(bundled_model, "recipe")
    got = small.stream(expected.text, max_new_tokens=FEW_TOKENS)
    assert got.ending is Ending.COMPLETE, got.describe()
    assert tuple(got.token_ids) == expected.token_ids


def test_a_full_queue_is_told_at_once(small: Client) -> None:
    body = {"inputs": "Once", "parameters": LONG}
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(small.call("POST", "/invocations", body))
        wait_metrics(small, lambda seen: seen[RUNNING] == 2, SECONDS)
        for _ in range(2):
            stack.enter_context(small.call("POST", "/invocations", body))
        full = wait_metrics(small, lambda seen: seen[WAITING] == 2, SECONDS)
        assert (full[RUNNING], full[WAITING]) == (2, 2)

        refused = small.post("/invocations", body)
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]

        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        refused = small.post("/v1/chat/completions", chat)
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["message"]

        assert small.ping() == 200
    # The waiting clients have left too: nothing may be left of them.
    after = wait_metrics(small, lambda seen: seen.idle, SECONDS)
    assert after.idle, after.describe()


def ask_with_limit(client: Client, seconds: int) -> tuple[Outcome, Outcome]:
    """A whole answer and a streamed one, neither of which can be complete in so many seconds."""
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(call, "Once", **LONG, timeout=seconds) for call in (client.generate, client.stream)
        ]
        whole, streamed = (call.result() for call in calls)
    return whole, streamed


def test_a_request_past_its_time_is_told(small: Client) -> None:
    # A stream has its status once a token has come in time, for which a busy machine may need more.
    for seconds in (3, 20, 100):
        whole, streamed = ask_with_limit(small, seconds)
        if streamed.status == 200:
            break
    assert whole.ending is Ending.TOLD
    assert whole.status >= 400
    assert f" {seconds} s (timeout)" in whole.error
    assert streamed.ending is Ending.TOLD
    assert streamed.status == 200
    assert len(streamed.token_ids) > 0
    assert small.generate("Once", max_new_tokens=2).ending is Ending.COMPLETE


def test_a_body_over_the_limit_is_a_413(small: Client) -> None:
    assert small.post("/invocations", {"inputs": "x" * 100_000}).status == 413
    assert small.generate("Once", max_new_tokens=2).ending is Ending.COMPLETE


def two_run_and_two_wait(client: Client, pool: ThreadPoolExecutor) -> list[Future[Outcome]]:
    """Requests of 60 tokens, which end in the time that a server has to stop."""
    asked = {"max_new_tokens": 60, "ignore_eos_token": True}
    while True:
        calls = [pool.submit(call, "Once", **asked) for call in (client.stream, client.generate) * 2]

        def answered(calls: list[Future[Outcome]] = calls) -> bool:
            return all(call.done() for call in calls)

        seen = wait_metrics(client, lambda seen: seen[RUNNING] == seen[WAITING] == 2 or answered(), SECONDS)
        if seen[RUNNING] == seen[WAITING] == 2:
            return calls
        assert answered(), seen.describe()  # before anybody looked, so that they are asked anew


def test_sigterm_under_load_finishes_what_runs(small: Client, small_server: Server) -> None:
    """The last test of this server."""
    with ThreadPoolExecutor(4) as pool:
        calls = two_run_and_two_wait(small, pool)
        small_server.process.terminate()
        small.wait_not_ready()
        # A new request is refused, or finds nobody listening any more.
        with contextlib.suppress(OSError, http.client.HTTPException):
            assert small.post("/invocations", {"inputs": "Late"}).status == 503
        code = small_server.wait_exit()
        outcomes = [call.result() for call in calls]
    assert code == 0, small_server.log_tail()
    complete = [outcome for outcome in outcomes if outcome.ending is Ending.COMPLETE]
    assert {outcome.ending for outcome in outcomes} <= {Ending.COMPLETE, Ending.TOLD}
    assert len(complete) >= 2, [outcome.describe() for outcome in outcomes]
    assert all(len(outcome.token_ids) == 60 for outcome in complete)
    assert small_server.left_over() == []
