"""What `serve` does before it starts processes."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from container.explain.resolve import CannotServe
from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.progress import LogLines, ProgressView
from container.run.early_answers import EarlyAnswers
from container.run.serve import CannotListen, ServeOptions, listen, serve
from container.run.stop_signals import StopRequested, StopSignals
from lmi_server.config import ModelSource


def serve_handler(folder: Path, model_id: str) -> None:
    """Serve a handler with a requirements.txt whose package does not exist."""
    (folder / "model.py").write_text("def handle(inputs): ...\n")
    (folder / "requirements.txt").write_text("./missing.whl\n")
    environ = {"OPTION_MODEL_ID": model_id, "LMI_CACHE_DIR": str(folder / "cache")}
    with StopSignals() as signals:
        serve(ServeOptions(folder, "127.0.0.1", 0), environ, LogLines(io.StringIO()), signals)


def test_packages_are_not_installed_without_permission(tmp_path: Path) -> None:
    with pytest.raises(CannotServe, match="start the server with lmi serve --allow-remote-code"):
        serve_handler(tmp_path, "some/name")
    assert not (tmp_path / "cache").exists()


def test_a_handlers_model_is_fetched_only_from_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def obtain(source: ModelSource, view: ProgressView) -> Path:
        raise ModelNotAvailable(f"fetching {source.model_id}")

    monkeypatch.setattr(model_files, "obtain", obtain)
    with pytest.raises(ModelNotAvailable, match="fetching s3://bucket/m"):
        serve_handler(tmp_path, "s3://bucket/m")
    with pytest.raises(CannotServe):
        serve_handler(tmp_path, "some/name")


def while_fetching(
    monkeypatch: pytest.MonkeyPatch, folder: Path, action: Callable[[int], None], port: int = 0
) -> None:
    """Serve a model on S3, and call `action` with the server's port instead of fetching the model."""
    log = io.StringIO()

    def obtain(source: ModelSource, view: ProgressView) -> Path:
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+); ", log.getvalue())
        assert found is not None
        action(int(found[1]))
        raise ModelNotAvailable("fetched no further")

    monkeypatch.setattr(model_files, "obtain", obtain)
    monkeypatch.setattr("container.run.serve.EarlyAnswers", partial(EarlyAnswers, quiet_seconds=0.0))
    (folder / "serving.properties").write_text("engine=MPI\noption.model_id=s3://bucket/m\n")
    with StopSignals() as signals:
        serve(ServeOptions(folder, "127.0.0.1", port), {}, LogLines(log), signals)


def test_requests_are_answered_while_the_model_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []

    def ping(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/ping")
        response = connection.getresponse()
        answers.append((response.status, json.loads(response.read())["reason"]))

    with pytest.raises(ModelNotAvailable, match="fetched no further"):
        while_fetching(monkeypatch, tmp_path, ping)
    assert answers == [(503, "the model is being downloaded")]


def test_a_used_port_is_reported_before_the_model_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listen("127.0.0.1", 0) as listener, pytest.raises(CannotListen):
        while_fetching(monkeypatch, tmp_path, lambda port: None, listener.getsockname()[1])


def test_a_stop_signal_ends_a_fetch_and_closes_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = []

    def stop(port: int) -> None:
        ports.append(port)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StopRequested):
        while_fetching(monkeypatch, tmp_path, stop)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports[0]))
