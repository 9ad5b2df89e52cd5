"""Two MPI ranks that serve a bare config.json: random weights, a byte-level tokenizer, and a common exit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import SECONDS
from tests.support.client import Ending
from tests.support.metrics import RUNNING, wait_metrics
from tests.support.paths import REPO_ROOT
from tests.support.server import Server

pytestmark = [pytest.mark.e2e, pytest.mark.mpi]

EXAMPLE = REPO_ROOT / "properties_examples" / "llama-dummy"
SHAPE = {
    "vocab_size": 600,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "max_position_embeddings": 16384,
}
PROMPT = "The capital of France is"
LONG = {"max_new_tokens": 12000, "ignore_eos_token": True}


def test_two_ranks_serve_dummy_weights_and_exit_together(tmp_path: Path) -> None:
    properties = (EXAMPLE / "serving.properties").read_text()
    config = json.loads((EXAMPLE / "config.json").read_text()) | SHAPE
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = f"{properties}option.tensor_parallel_degree=2\noption.kv_cache_gb=0.05\n"
    with Server(tmp_path, text, environment={"LMI_CACHE_DIR": str(tmp_path / "cache")}) as server:
        server.wait_ready()
        check_answers(server)
        ranks = server.ranks()
        assert sorted(ranks) == [0, 1]
        with ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(server.client.stream, "Once", **LONG) for _ in range(2)]
            clients += [pool.submit(server.client.generate, "Once", **LONG) for _ in range(2)]
            busy = wait_metrics(server.client, lambda seen: seen[RUNNING] == 4, SECONDS)
            assert busy[RUNNING] == 4
            ranks[1].kill()
            code = server.wait_exit()
            endings = [client.result().ending for client in clients]
        assert code not in {0, None}
        assert endings == [Ending.ERROR] * 4, server.log_tail()
        assert "rank 1" in server.log_tail()
        assert server.leftover_processes() == []


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
