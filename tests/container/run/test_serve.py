"""What `serve` does before it starts processes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from container.explain.resolve import CannotServe
from container.models import files as model_files
from container.models.files import ModelNotAvailable
from container.progress import LogLines, ProgressView
from container.run.serve import ServeOptions, serve
from container.run.stop_signals import StopSignals
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
