"""A server of a bare config.json, with random weights and a byte-level tokenizer, and its graceful shutdown."""

from __future__ import annotations

import contextlib
import http.client
import json
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import SECONDS
from tests.support.client import Client, Ending, Outcome
from tests.support.metrics import RUNNING, WAITING, wait_metrics
from tests.support.paths import REPO_ROOT
from tests.support.server import Server

pytestmark = pytest.mark.e2e

EXAMPLE = REPO_ROOT / "properties_examples" / "llama-dummy"
SHAPE = {
    "vocab_size": 600,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "max_position_embeddings": 16384,
}
PROMPT = "The capital of France is"


def test_dummy_weights_are_served_and_running_requests_finish_after_sigterm(tmp_path: Path) -> None:
    properties = (EXAMPLE / "serving.properties").read_text()
    config = json.loads((EXAMPLE / "config.json").read_text()) | SHAPE
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = f"{properties}option.kv_cache_gb=0.05\noption.max_rolling_batch_size=2\n"
    with Server(tmp_path, text, environment={"LMI_CACHE_DIR": str(tmp_path / "cache")}) as server:
        check_answers(server)
        check_shutdown(server)


def check_answers(server: Server) -> None:
    parameters: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos_token": True}
    body = {"inputs": PROMPT, "parameters": {**parameters, "details": True}}
    whole = server.client.post("/invocations", body).json()
    assert len(whole["details"]["tokens"]) == 24
    # A token that is not a byte is shown as its id, possibly after bytes that do not form a character.
    assert all(
        one["text"].endswith(f"<{one['id']}>") for one in whole["details"]["tokens"] if one["id"] >= 258
    )
    assert server.client.stream(PROMPT, **parameters).text == whole["generated_text"]
    chat = {"messages": [{"role": "user", "content": PROMPT}]}
    refused = server.client.post("/v1/chat/completions", chat)
    assert refused.status == 400
    assert "chat template" in refused.body
    assert "the weights are random" in server.log()
    assert "has no tokenizer; using a byte-level tokenizer" in server.log()


def two_run_and_two_wait(client: Client, pool: ThreadPoolExecutor) -> list[Future[Outcome]]:
    """Submit requests of 200 tokens, which finish within the grace period of a shutdown."""
    parameters = {"max_new_tokens": 200, "ignore_eos_token": True}
    while True:
        calls = [pool.submit(call, "Once", **parameters) for call in (client.stream, client.generate) * 2]

        def all_done(calls: list[Future[Outcome]] = calls) -> bool:
            return all(call.done() for call in calls)

        seen = wait_metrics(client, lambda seen: seen[RUNNING] == seen[WAITING] == 2 or all_done(), SECONDS)
        if seen[RUNNING] == seen[WAITING] == 2:
            return calls
        assert all_done(), seen.describe()  # finished before the metrics were read: try again


def check_shutdown(server: Server) -> None:
    """Send SIGTERM to every process under load, as systemd does."""
    with ThreadPoolExecutor(4) as pool:
        calls = two_run_and_two_wait(server.client, pool)
        for process in server.processes():
            process.terminate()
        server.client.wait_not_ready()
        # A new request is rejected or cannot connect.
        with contextlib.suppress(OSError, http.client.HTTPException):
            assert server.client.post("/invocations", {"inputs": "Late"}).status == 503
        code = server.wait_exit()
        outcomes = [call.result() for call in calls]
    assert code == 0, server.log_tail()
    complete = [outcome for outcome in outcomes if outcome.ending is Ending.COMPLETE]
    assert {outcome.ending for outcome in outcomes} <= {Ending.COMPLETE, Ending.ERROR}
    assert len(complete) >= 2, [outcome.describe() for outcome in outcomes]
    assert all(len(outcome.token_ids) == 200 for outcome in complete)
    assert server.leftover_processes() == []
