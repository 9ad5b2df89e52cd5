"""The settings that the router passes to its models' servers and to the manager."""

from __future__ import annotations

import logging
import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.machine import Machine
from container.multi_model import router
from container.multi_model.config import RouterConfig
from container.multi_model.errors import NoMemory
from container.multi_model.manager import ModelManager, Predict, Start
from container.multi_model.memory import MemoryAccount, Room
from container.multi_model.served_model import MemoryNeed
from container.run.local_server import LocalServer, free_port

MODEL = Path("/models/a")
Commands = list[tuple[list[str], dict[str, str]]]
"""Commands and environments of servers."""


class RecordingManager(ModelManager):
    """A manager that loads nothing, and whose arguments can be read."""

    def __init__(
        self, folders: dict[str, Path], account: MemoryAccount, predict: Predict, start: Start, limit: float
    ) -> None:
        super().__init__(folders, account, predict, start, limit)
        self.predict, self.start, self.limit = predict, start, limit
        self.watched = threading.Event()

    def load_all(self) -> None:
        pass

    def watch(self) -> None:
        self.watched.set()


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Record the servers that would have been started."""
    started: Commands = []

    def start(name: str, command: list[str], environ: dict[str, str], port: int) -> SimpleNamespace:
        started.append((command, environ))
        return SimpleNamespace(port=port, death=lambda: None)

    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    monkeypatch.setattr(router, "ModelManager", RecordingManager)
    monkeypatch.setattr(LocalServer, "start", start)
    return started


def make_manager(tmp_path: Path, **changes: Any) -> RecordingManager:
    """Make a router that is configured with `changes`, and return its manager."""
    fields = {"folders": {}, "lenient": False, "allow_remote_code": False, **changes}
    config = RouterConfig(
        models_root="/models",
        max_request_size=1000,
        throttle_error_http_code=503,
        memory_limit=None,
        memory_reserved=0,
        **fields,
    )
    path = tmp_path / "router.json"
    path.write_text(config.to_json())
    manager: RecordingManager = router.make_router(str(path)).extensions["models"]
    return manager


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({}, []),
        ({"lenient": True}, ["--lenient"]),
        ({"allow_remote_code": True}, ["--allow-remote-code"]),
    ],
)
def test_a_model_is_served_and_its_memory_predicted_with_the_flags_of_the_router(
    changes: dict[str, bool],
    flags: list[str],
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    predictions = []

    def predict_need(
        folder: Path, environ: dict[str, str], machine: Machine, lenient: bool, allow_remote_code: bool
    ) -> MemoryNeed:
        predictions.append((folder, machine, lenient, allow_remote_code))
        return MemoryNeed(1)

    monkeypatch.setattr(router, "predict_need", predict_need)
    manager = make_manager(tmp_path, **changes)
    machine = Machine(2, 100)
    need = manager.predict(MODEL, Room(machine))
    manager.start("a", MODEL, need)
    ((command, _),) = commands
    assert [word for word in command if word in ("--lenient", "--allow-remote-code")] == flags
    lenient, allow_remote_code = changes.get("lenient", False), changes.get("allow_remote_code", False)
    assert predictions == [(MODEL, machine, lenient, allow_remote_code)]


@pytest.mark.parametrize(("predicted", "size"), [("0.5", "0.5"), ("", None)])
def test_a_server_gets_the_predicted_kv_cache_size(
    predicted: str,
    size: str | None,
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("OPTION_KV_CACHE_GB", raising=False)
    make_manager(tmp_path).start("a", MODEL, MemoryNeed(1, kv_cache_gb=predicted))
    ((_, environ),) = commands
    assert environ.get("OPTION_KV_CACHE_GB") == size


@pytest.mark.parametrize(
    ("variable", "of_model"),
    [("/t/steps.jsonl", "/t/steps-llama-3.1.jsonl"), ("steps.json", "steps.json"), (" ", " ")],
)
def test_each_server_writes_its_own_step_trace(
    variable: str, of_model: str, commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPTION_STEP_TRACE", variable)
    make_manager(tmp_path).start("llama-3.1", MODEL, MemoryNeed(1))
    ((_, environ),) = commands
    assert environ["OPTION_STEP_TRACE"] == of_model


def test_a_server_gets_a_port_that_the_platform_allows_and_no_other_server_has(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other server may not listen yet."""
    port = free_port()
    monkeypatch.setenv("SAGEMAKER_SAFE_PORT_RANGE", f"{port}-{port}")
    manager = make_manager(tmp_path, folders={"a": str(MODEL), "b": str(MODEL)})
    first = manager.models()[0]
    first.server = manager.start("a", MODEL, MemoryNeed(1))
    assert first.server.port == port
    with pytest.raises(NoMemory, match="cannot load another model: no free port"):
        manager.start("b", MODEL, MemoryNeed(1))


def test_only_models_that_the_platform_loads_have_its_time_limit(commands: Commands, tmp_path: Path) -> None:
    assert make_manager(tmp_path).limit == 360.0
    assert make_manager(tmp_path, folders={"a": str(MODEL)}).limit == math.inf


def test_models_are_watched(commands: Commands, tmp_path: Path) -> None:
    assert make_manager(tmp_path).watched.wait(200.0)
