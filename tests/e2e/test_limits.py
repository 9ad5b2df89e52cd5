"""Limits (a full queue, a request that times out, a body that is too large) and graceful shutdown.

One small server with contiguous attention, on the port in `SAGEMAKER_BIND_TO_PORT`.
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
    """A client of the small server, which is idle when the test starts."""
    metrics = wait_metrics(small_server.client, lambda seen: seen.idle, SECONDS)
    assert metrics.idle, metrics.describe()
    return small_server.client


def test_the_server_listens_on_the_sagemaker_port(small_server: Server) -> None:
    assert small_server.client.ping() == 200
    assert f":{small_server.port}" in small_server.log()


def test_contiguous_attention_equals_transformers(small: Client, bundled_model: Path) -> None:
    (expected,) = few_answers(bundled_model, "recipe")
    got = small.stream(expected.text, max_new_tokens=FEW_TOKENS)
    assert got.ending is Ending.COMPLETE, got.describe()
    assert tuple(got.token_ids) == expected.token_ids


def test_a_full_queue_rejects_requests_immediately(small: Client) -> None:
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
    # The waiting clients have disconnected too, so their requests must be gone.
    after = wait_metrics(small, lambda seen: seen.idle, SECONDS)
    assert after.idle, after.describe()


def generate_with_timeout(client: Client, seconds: int) -> tuple[Outcome, Outcome]:
    """Return the outcomes of a whole and of a streamed response that are too long for the timeout."""
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(call, "Once", **LONG, timeout=seconds) for call in (client.generate, client.stream)
        ]
        whole, streamed = (call.result() for call in calls)
    return whole, streamed


def test_a_request_that_times_out_gets_an_error(small: Client) -> None:
    # A stream has status 200 only if its first token is in time, which may take longer on a busy machine.
    for seconds in (3, 20, 100):
        whole, streamed = generate_with_timeout(small, seconds)
        if streamed.status == 200:
            break
    assert whole.ending is Ending.ERROR
    assert whole.status >= 400
    assert f" {seconds} s (timeout)" in whole.error
    assert streamed.ending is Ending.ERROR
    assert streamed.status == 200
    assert len(streamed.token_ids) > 0
    assert small.generate("Once", max_new_tokens=2).ending is Ending.COMPLETE


def test_a_body_over_the_limit_returns_413(small: Client) -> None:
    assert small.post("/invocations", {"inputs": "x" * 100_000}).status == 413
    assert small.generate("Once", max_new_tokens=2).ending is Ending.COMPLETE


def two_run_and_two_wait(client: Client, pool: ThreadPoolExecutor) -> list[Future[Outcome]]:
    """Submit requests of 60 tokens, which finish within the grace period of a shutdown."""
    parameters = {"max_new_tokens": 60, "ignore_eos_token": True}
    while True:
        calls = [pool.submit(call, "Once", **parameters) for call in (client.stream, client.generate) * 2]

        def all_done(calls: list[Future[Outcome]] = calls) -> bool:
            return all(call.done() for call in calls)

        seen = wait_metrics(client, lambda seen: seen[RUNNING] == seen[WAITING] == 2 or all_done(), SECONDS)
        if seen[RUNNING] == seen[WAITING] == 2:
            return calls
        assert all_done(), seen.describe()  # finished before the metrics were read: try again


def test_sigterm_under_load_finishes_running_requests(small: Client, small_server: Server) -> None:
    """This must be the last test, because it stops the server."""
    with ThreadPoolExecutor(4) as pool:
        calls = two_run_and_two_wait(small, pool)
        small_server.process.terminate()
        small.wait_not_ready()
        # A new request is rejected or cannot connect.
        with contextlib.suppress(OSError, http.client.HTTPException):
            assert small.post("/invocations", {"inputs": "Late"}).status == 503
        code = small_server.wait_exit()
        outcomes = [call.result() for call in calls]
    assert code == 0, small_server.log_tail()
    complete = [outcome for outcome in outcomes if outcome.ending is Ending.COMPLETE]
    assert {outcome.ending for outcome in outcomes} <= {Ending.COMPLETE, Ending.ERROR}
    assert len(complete) >= 2, [outcome.describe() for outcome in outcomes]
    assert all(len(outcome.token_ids) == 60 for outcome in complete)
    assert small_server.leftover_processes() == []
