"""Shared servers for the end-to-end tests, because starting a server takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.client import Answer, Client
from tests.support.metrics import wait_metrics
from tests.support.server import ADMIN_HEADERS, Server, properties_text
from tests.support.tokenizers import save_gpt2
from tests.support.waiting import wait_until

SCHEDULER = "/admin/scheduler"
SECONDS = 200.0
"""Timeout for changes that the server makes asynchronously."""
ChangeLimits = Callable[..., Answer]
"""Type of the fixture `limits`: PATCH these fields and return the response."""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama model with random weights and its own tokenizer, for tests that start several servers."""
    from tests.support.tiny_models import save_llama  # imports torch

    folder = tmp_path_factory.mktemp("tiny-model")
    size = save_gpt2(folder, as_json=True)
    save_llama(folder, vocab_size=size, bos_token_id=0, eos_token_id=0, max_position_embeddings=16384)
    return folder


@pytest.fixture(scope="session")
def dynamic_server(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """engine=Python, batches of up to 8 that wait 200 ms to fill."""
    text = properties_text(bundled_model, "Python", batch_size=8, max_batch_delay=200)
    with Server(tmp_path_factory.mktemp("dynamic"), text) as server:
        yield server


@pytest.fixture
def client(paged_server: Server) -> Client:
    """A client of the shared server."""
    return paged_server.client


@pytest.fixture
def api(paged_server: Server) -> Iterator[openai.OpenAI]:
    """The openai package's client of the shared server."""
    with openai_client(paged_server) as client:
        yield client


def openai_client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)


def scheduler(client: Client, **changes: object) -> Answer:
    """PATCH these scheduler fields, retry while a busy engine does not answer in time, and return the response."""
    responses: list[Answer] = []

    def engine_answers() -> bool:
        with client.call("PATCH", SCHEDULER, changes, ADMIN_HEADERS) as call:
            responses.append(call.read())
        return "did not answer" not in responses[-1].body

    wait_until(engine_answers)
    return responses[-1]


def current_limits(client: Client) -> dict[str, Any]:
    """Return the current limits of the scheduler."""
    limits: dict[str, Any] = scheduler(client).json()
    return limits


@pytest.fixture
def limits(client: Client) -> Iterator[ChangeLimits]:
    """Change the scheduler limits of the shared server. Teardown restores them and waits until the server is idle."""

    def change(**changes: object) -> Answer:
        return scheduler(client, **changes)

    before = current_limits(client)
    yield change
    assert change(**before).status == 200
    after = wait_metrics(client, lambda seen: seen.idle, SECONDS)
    assert after.idle, after.describe()
