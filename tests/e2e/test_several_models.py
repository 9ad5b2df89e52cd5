"""Several models in one container: a folder of models, and SageMaker's multi-model API.

The models are handlers, except for one tiny language model. `make verify` covers six language models.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support import processes
from tests.support.client import Client
from tests.support.server import Server
from tests.support.several_models import generate_tokens, load, multi_model_server, save_handlers, save_models

pytestmark = pytest.mark.e2e

NAMES = "abc"
ROOM = 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_handlers(tmp_path_factory.mktemp("models"), NAMES)


@pytest.fixture(scope="module")
def folder_server(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a folder with three models and memory for two."""
    with multi_model_server(tmp_path_factory.mktemp("folder"), folders["a"].parent, ROOM) as server:
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
    names = "cbcba"

    def ask(item: tuple[int, str]) -> list[int]:
        number, name = item
        return generate_tokens(folder_server.client, f"/predictions/{name}", {"stream": number % 2 == 0})

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, enumerate(names))) == [answers[name] for name in names]
    assert sorted(statuses(folder_server.client).values()) == ["down", "ready", "ready"]


@pytest.mark.parametrize("path", ["/invocations", "/v1/completions"])
def test_the_request_body_selects_the_model(
    path: str, folder_server: Server, answers: dict[str, list[int]]
) -> None:
    listed = folder_server.client.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == list(NAMES)
    for name in "bc":
        assert generate_tokens(folder_server.client, path, {"model": name}) == answers[name]


@pytest.mark.long
def test_a_killed_model_restarts_while_the_other_keeps_serving(
    folder_server: Server, answers: dict[str, list[int]], folders: dict[str, Path]
) -> None:
    client = folder_server.client
    for name in "ab":
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


@pytest.mark.long
def test_models_can_be_loaded_and_unloaded_with_the_multi_model_api(
    folders: dict[str, Path], answers: dict[str, list[int]], tmp_path: Path
) -> None:
    """The model `a` of the folder is replaced by a language model."""
    folders = folders | save_models(tmp_path / "models", "a")
    environment = {"SAGEMAKER_MULTI_MODEL": "true", "LMI_MODELS_DIR": str(tmp_path.parent)}
    with multi_model_server(tmp_path, tmp_path / "none", ROOM, environment) as server:
        client = server.client
        assert client.get("/models").json() == {"models": []}
        assert client.post("/models/a/invoke", {"inputs": "x"}).status == 404
        assert [load(client, name, folders[name]) for name in ("b", "a", "b", "c")] == [200, 200, 409, 507]
        assert load(client, "x", Path("/etc")) == 400
        generated = generate_tokens(client, "/models/a/invoke")
        for name, tokens in (("a", generated), ("b", answers["b"])):
            assert generate_tokens(client, f"/models/{name}/invoke", {"stream": True}) == tokens
        assert generate_tokens(client, "/models/b/invoke") == answers["b"]
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
        assert "try it:" not in server.log(), "the model's own port is not for clients"


def test_during_a_shutdown_new_requests_get_503_while_a_stream_completes(
    folder_server: Server, tmp_path: Path
) -> None:
    """The last test of this server."""
    client, gate = folder_server.client, tmp_path / "gate"
    body = {"inputs": "x", "parameters": {"max_new_tokens": 8}, "stream": True, "gate": str(gate)}
    with client.call("POST", "/predictions/a", body) as call:
        lines = call.lines()
        assert next(lines)
        folder_server.process.terminate()
        client.wait_not_ready()
        until = time.monotonic() + 2.5  # gunicorn looks for the signal once a second
        while time.monotonic() < until:
            ping, refused = client.get("/ping"), client.post("/predictions/b", {"inputs": "x"})
            assert (ping.status, refused.status) == (503, 503)
        gate.touch()
        rest = list(lines)
    assert ping.json()["reason"] == refused.json()["error"] == "the server is shutting down"
    assert "retry-after" in ping.headers
    assert "retry-after" in refused.headers
    assert len(rest) == 7, rest
    assert folder_server.wait_exit() == 0
    assert folder_server.leftover_processes() == []
