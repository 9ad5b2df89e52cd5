"""Several models in one container: a folder of models, and SageMaker's multi-model API.

One is a tiny language model, the others are handlers. `make verify` covers six language models.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from openai import OpenAI

from tests.support import processes
from tests.support.client import Client
from tests.support.server import Server
from tests.support.several_models import generate_tokens, load, multi_model_server, save_handlers, save_models

pytestmark = pytest.mark.e2e

NAMES = "abc"
ROOM = 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {**save_models(root, NAMES[:1]), **save_handlers(root, NAMES[1:])}


@pytest.fixture(scope="module")
def folder_server(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a folder with three models and memory for two."""
    with multi_model_server(tmp_path_factory.mktemp("folder"), folders["a"].parent, ROOM) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def answers(folder_server: Server) -> dict[str, list[int]]:
    """Token ids that each model generates, by model. No two models generate the same."""
    generated = {name: generate_tokens(folder_server.client, f"/predictions/{name}") for name in NAMES}
    assert len({tuple(tokens) for tokens in generated.values()}) == len(NAMES)
    return generated


def statuses(client: Client) -> dict[str, str]:
    return {model["modelName"]: model["status"] for model in client.get("/models").json()["models"]}


def processes_of(server: Server, folder: Path) -> list[psutil.Process]:
    """Return the supervisor process of a model's server."""
    return processes.with_argument(server.processes(), str(folder).__eq__)


def test_concurrent_requests_reach_the_right_model(
    folder_server: Server, answers: dict[str, list[int]]
) -> None:
    names = "cbacb"

    def ask(item: tuple[int, str]) -> list[int]:
        number, name = item
        return generate_tokens(folder_server.client, f"/predictions/{name}", {"stream": number % 2 == 0})

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, enumerate(names))) == [answers[name] for name in names]
    assert sorted(statuses(folder_server.client).values()) == ["down", "ready", "ready"]


def test_the_openai_client_selects_a_model_by_name(folder_server: Server) -> None:
    api = OpenAI(base_url=f"{folder_server.base_url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in api.models.list()] == list(NAMES)
    reply = api.completions.create(model="a", prompt="Once", max_tokens=8, temperature=0)
    assert reply.model == "a"
    assert reply.choices[0].text


def test_the_request_body_selects_the_model(folder_server: Server, answers: dict[str, list[int]]) -> None:
    for name in "ab":
        assert generate_tokens(folder_server.client, "/invocations", {"model": name}) == answers[name]


def test_a_killed_model_restarts_while_the_other_keeps_serving(
    folder_server: Server, answers: dict[str, list[int]], folders: dict[str, Path]
) -> None:
    client = folder_server.client
    for name in ("a", "b"):
        assert generate_tokens(client, f"/predictions/{name}") == answers[name]
    [killed] = processes_of(folder_server, folders["a"])
    killed.send_signal(signal.SIGKILL)
    assert not processes.wait_exited([killed], 120)
    assert generate_tokens(client, "/predictions/b") == answers["b"]
    while (answer := client.post("/predictions/a", {"inputs": "x"})).status == 503:
        assert "SIGKILL" in answer.body or "ended" in answer.body
        time.sleep(0.05)
    assert generate_tokens(client, "/predictions/a") == answers["a"]
    assert generate_tokens(client, "/predictions/b") == answers["b"]


def test_models_can_be_loaded_and_unloaded_with_the_multi_model_api(
    folders: dict[str, Path], answers: dict[str, list[int]], tmp_path: Path
) -> None:
    root = folders["a"].parent
    environment = {"SAGEMAKER_MULTI_MODEL": "true", "LMI_MODELS_DIR": str(root)}
    with multi_model_server(tmp_path, tmp_path / "none", ROOM, environment) as server:
        server.wait_ready()
        client = server.client
        assert client.get("/models").json() == {"models": []}
        assert client.post("/models/a/invoke", {"inputs": "x"}).status == 404
        assert [load(client, name, folders[name]) for name in ("b", "a", "b", "c")] == [200, 200, 409, 507]
        assert load(client, "x", Path("/etc")) == 400
        for name in ("a", "b"):
            assert generate_tokens(client, f"/models/{name}/invoke") == answers[name]
            assert generate_tokens(client, f"/models/{name}/invoke", {"stream": True}) == answers[name]
        taken = client.get("/models/a").json()["memoryBytes"]
        assert taken > 100 << 20
        with client.call("DELETE", "/models/b") as call:
            assert call.read().status == 200
        assert processes_of(server, folders["b"]) == []
        assert client.post("/models/b/invoke", {"inputs": "x"}).status == 404
        assert load(client, "c", folders["c"]) == 200
        assert generate_tokens(client, "/models/c/invoke") == answers["c"]
        # A running stream completes during a graceful shutdown.
        long = {
            "inputs": "x",
            "parameters": {"max_new_tokens": 200, "ignore_eos_token": True},
            "stream": True,
        }
        with client.call("POST", "/models/a/invoke", long) as call:
            assert call.response().status == 200
            server.process.terminate()
            lines = list(call.lines())
        assert len(lines) == 200, lines[-1]
        assert server.wait_exit() == 0
        assert server.leftover_processes() == []
