"""Several tiny models with different weights, or handlers in their place, and a server for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.support.client import Client
from tests.support.server import Server, properties_text

REQUIRED_MB = 1000
"""Memory that each model requires, more than its processes use."""
_PROMPT = "Once upon a time"
_HANDLER = """
import json
import os
import time

from djl_python import Input, Output


def tokens(first, count, gate):
    for number in range(first, first + count):
        time.sleep(0.005)
        yield json.dumps({"token": {"id": number}}) + "\\n"
        while gate and not os.path.exists(gate):
            time.sleep(0.01)


def handle(inputs: Input):
    global first
    if inputs.is_empty():
        first = int(inputs.get_properties()["first_id"])
        return None
    body = inputs.get_as_json()
    count = body.get("parameters", {}).get("max_new_tokens", 4)
    if body.get("stream"):
        return Output().add_stream_content(tokens(first, count, body.get("gate")), None)
    numbers = range(first, first + count)
    return Output().add_as_json({"details": {"tokens": [{"id": number} for number in numbers]}})
"""


def save_models(root: Path, names: str) -> dict[str, Path]:
    """Write a folder below `root` for each name, with a random model and a serving.properties."""
    from tests.support.tiny_models import save_llama  # imports torch
    from tests.support.tokenizers import save_gpt2

    folders = {}
    for seed, name in enumerate(names):
        folder = root / name
        folder.mkdir(parents=True)
        size = save_gpt2(folder, as_json=True)
        save_llama(
            folder, seed=seed, vocab_size=size, bos_token_id=0, eos_token_id=0, max_position_embeddings=256
        )
        text = properties_text(folder, kv_cache_gb=0.01) + f"required_memory_mb={REQUIRED_MB}\n"
        (folder / "serving.properties").write_text(text)
        folders[name] = folder
    return folders


def save_handlers(root: Path, names: str) -> dict[str, Path]:
    """Write a folder below `root` for each name, with a handler that responds like a model but starts faster."""
    folders = {}
    for number, name in enumerate(names):
        folders[name] = root / name
        folders[name].mkdir(parents=True)
        (folders[name] / "model.py").write_text(_HANDLER)
        text = f"engine=Python\noption.first_id={number}000\nrequired_memory_mb={REQUIRED_MB}\n"
        (folders[name] / "serving.properties").write_text(text)
    return folders


def multi_model_server(
    folder: Path, root: Path, room: int, environment: Mapping[str, str] | None = None
) -> Server:
    """A server for the models below `root`, with memory for `room` of them. folder: holds its log."""
    limit = {"LMI_MODELS_MEMORY_MB": str(room * REQUIRED_MB + REQUIRED_MB // 2)}
    return Server(folder, "", served=root, environment={**limit, **(environment or {})})


def load(client: Client, name: str, folder: Path) -> int:
    """Load a model with SageMaker's API, and return the status."""
    return client.post("/models", {"model_name": name, "url": str(folder)}).status


def generate_tokens(client: Client, path: str, body: Mapping[str, object] | None = None) -> list[int]:
    """Return the tokens of a greedy response. They differ from model to model."""
    parameters = {"max_new_tokens": 8, "details": True, "ignore_eos_token": True}
    request = {"inputs": _PROMPT, "parameters": parameters, **(body or {})}
    answer = client.post(path, request)
    if answer.status != 200:
        raise AssertionError(f"{path}: {answer.status} {answer.body}")
    if not request.get("stream"):
        return [token["id"] for token in answer.json()["details"]["tokens"]]
    return [json.loads(line)["token"]["id"] for line in answer.body.splitlines()]
