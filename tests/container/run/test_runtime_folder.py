"""The runtime folder of one `lmi serve`."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from container.explain.resolve import CannotServe
from container.progress import LogLines
from container.run import runtime_folder as runtime_folder_module
from container.run import serve
from container.run.launch import RuntimePaths
from container.run.runtime_folder import _LONGEST_BASE, remove_leftovers, runtime_folder
from container.run.stop_signals import StopSignals

OLD = (0, 0)
"""Times of a folder that is older than any run."""


def killed_run(base: Path) -> Path:
    folder = base / "lmi-dead"
    folder.mkdir()
    (folder / "lock").touch()
    (folder / "sm_segment").write_bytes(b"x")
    os.utime(folder, OLD)
    return folder


def test_the_folder_is_private_and_removed_at_exit(tmp_path: Path) -> None:
    with runtime_folder(tmp_path) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "engine.json").write_text("{}")
    assert list(tmp_path.iterdir()) == []


def test_every_socket_address_below_the_longest_base_fits() -> None:
    paths = RuntimePaths(Path("/" + "b" * (_LONGEST_BASE - 1) + "/lmi-" + "x" * 8))
    for used in (*paths.copies(1), *paths.copies(20), paths.formatter):
        assert len(os.fsencode(used.engine_address.removeprefix("ipc://"))) <= 107, used.engine_address


def test_the_folder_of_a_killed_run_is_removed_by_the_next_run(tmp_path: Path) -> None:
    killed_run(tmp_path)
    with runtime_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_the_folder_of_a_killed_run_is_removed_before_shared_memory_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_memory = tmp_path / "shm"
    shared_memory.mkdir()
    dead = killed_run(shared_memory)

    def detect(environ: object) -> None:
        raise CannotServe(f"exists: {dead.exists()}")

    monkeypatch.setattr(runtime_folder_module, "_SHARED_MEMORY", shared_memory)
    monkeypatch.setattr(serve, "detect", detect)
    options = serve.ServeOptions(tmp_path, "127.0.0.1", 0)
    with StopSignals() as signals, pytest.raises(CannotServe, match="exists: False"):
        serve.serve(options, {"HF_MODEL_ID": "owner/tiny"}, LogLines(io.StringIO()), signals)


def test_folders_in_use_new_folders_and_foreign_folders_are_kept(tmp_path: Path) -> None:
    with runtime_folder(tmp_path) as in_use:
        os.utime(in_use, OLD)
        (tmp_path / "lmi-young").mkdir()
        (tmp_path / "lmi-young" / "lock").touch()
        (tmp_path / "lmi-without-lock").mkdir()
        os.utime(tmp_path / "lmi-without-lock", OLD)
        remove_leftovers(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {in_use.name, "lmi-young", "lmi-without-lock"}
