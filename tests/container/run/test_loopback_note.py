"""The note of a server whose ranks are reachable from the network."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from container.machine import Machine
from container.progress import LogLines
from container.run import mpi
from container.run.launch import MpiRun, RuntimePaths
from container.run.serve import _Run
from container.run.stop_signals import StopSignals
from tests.container.run.test_launch import CONFIG


def test_a_missing_loopback_library_is_noted_with_its_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "my cache"
    found = MpiRun(Path("/mpirun"), 5)
    monkeypatch.setattr(mpi, "find_mpirun", lambda environ: found)
    environ: dict[str, Any] = {"LMI_CACHE_DIR": str(cache)}
    log = io.StringIO()
    machine, paths = Machine(1, 1), RuntimePaths(tmp_path)
    run = _Run(CONFIG, 1, False, paths, environ, machine, LogLines(log), StopSignals())
    assert run._mpirun() == found
    assert (
        "note: mpirun listens on all network interfaces, because the library that prevents it could not be compiled"
        f" or cannot be loaded (needs a C compiler and a cache, {cache}, that is writable, is not mounted noexec, and"
        " has no space or colon in its path)"
    ) in log.getvalue()
