"""A server whose model is a config.json: random weights, bytes for tokens, the same tokens at every start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Client
from tests.support.paths import REPO_ROOT
from tests.support.server import Server

pytestmark = pytest.mark.e2e

EXAMPLE = REPO_ROOT / "properties_examples" / "llama-dummy"
SHAPE = {"vocab_size": 600, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2}
PROMPT = "The capital of France is"
NUM_TOKENS = 24


def generate(client: Client) -> dict[str, Any]:
    """Greedy: its text and its tokens, counted."""
    parameters = {"max_new_tokens": NUM_TOKENS, "details": True, "ignore_eos_token": True}
    reply = client.post("/invocations", {"inputs": PROMPT, "parameters": parameters})
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json()
    return found


@pytest.mark.mpi
def test_every_start_and_every_degree_gives_the_same_tokens(tmp_path: Path) -> None:
    properties = (EXAMPLE / "serving.properties").read_text()
    config = json.loads((EXAMPLE / "config.json").read_text()) | SHAPE
    texts = []
    for name, degree in (("first", 1), ("again", 2)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        text = f"{properties}option.tensor_parallel_degree={degree}\noption.kv_cache_gb=0.05\n"
        environment = {"LMI_CACHE_DIR": str(tmp_path / "cache")}
        with Server(folder, text, environment=environment) as server:
            server.wait_ready()
            found = generate(server.client)
            texts.append(found["generated_text"])
            tokens = found["details"]["tokens"]
            # What is no byte shows its number, behind bytes that make no character.
            assert all(one["text"].endswith(f"<{one['id']}>") for one in tokens if one["id"] >= 258)
            if name == "again":
                chat = {"messages": [{"role": "user", "content": PROMPT}]}
                refused = server.client.post("/v1/chat/completions", chat)
                assert refused.status == 400
                assert "chat template" in refused.body
                streamed = server.client.stream(PROMPT, max_new_tokens=NUM_TOKENS, ignore_eos_token=True)
                assert streamed.text == texts[0]
            log = server.log()
        assert "the weights are random" in log
        assert "texts are read as bytes" in log
        shutil.rmtree(folder)
    assert texts == texts[:1] * 2
    assert len(texts[0]) > NUM_TOKENS
