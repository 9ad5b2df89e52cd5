"""A working directory whose files are named like modules that the server imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.server import Server

pytestmark = pytest.mark.e2e


def test_files_in_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    model, current = tmp_path / "model", tmp_path / "current"
    model.mkdir()
    current.mkdir()
    (model / "model.py").write_text("def handle(inputs):\n    return None\n")
    for name in ("zmq", "msgspec", "gevent", "gunicorn", "numpy", "engines", "lmi_server"):
        (current / f"{name}.py").write_text("import pathlib\npathlib.Path(__file__ + '.ran').touch()\n")
    with Server(model, "engine=Python\n", cwd=current) as server:
        server.wait_ready()
        assert server.client.post("/invocations", {}).status == 204
    assert not list(current.glob("*.ran"))
