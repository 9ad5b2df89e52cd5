"""How the router is started. Its process is a fake."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.errors import BadVariable
from container.multi_model import serve
from container.progress import LogLines
from container.run.serve import ServeOptions
from container.run.stop_signals import StopRequested, StopSignals


def test_each_forwarded_request_of_the_router_may_open_two_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[Sequence[str]] = []

    def start(name: str, command: Sequence[str], *_: Any, **__: Any) -> None:
        commands.append(command)
        raise StopRequested

    monkeypatch.setattr(serve, "Child", SimpleNamespace(start=start))
    monkeypatch.setattr(serve, "raise_open_files", lambda view: 1256)
    environ = {"SAGEMAKER_MULTI_MODEL": "true"}
    options = ServeOptions(tmp_path, "127.0.0.1", 0)
    config = serve.router_config(options, environ)
    assert config is not None
    with StopSignals() as signals, pytest.raises(StopRequested):
        serve.serve_several(config, options, environ, LogLines(io.StringIO()), signals)
    (command,) = commands
    assert command[command.index("--worker-connections") + 1] == "500"


def test_an_invalid_port_range_is_refused_at_the_start(tmp_path: Path) -> None:
    environ = {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_SAFE_PORT_RANGE": "21000"}
    options = ServeOptions(tmp_path, "127.0.0.1", 0)
    config = serve.router_config(options, environ)
    assert config is not None
    with StopSignals() as signals, pytest.raises(BadVariable, match="SAGEMAKER_SAFE_PORT_RANGE"):
        serve.serve_several(config, options, environ, LogLines(io.StringIO()), signals)
