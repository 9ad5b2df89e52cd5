"""A /dev/shm that is too small is an error at start-up, not a SIGBUS later."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from container.explain.resolve import obstacles
from container.explain.resolve.shared_memory import needed_bytes, shortage
from container.machine import Machine, detect
from lmi_server.config import EngineOptions, LmiConfig
from tests.support.namespaces import NEW_MOUNTS, require
from tests.support.paths import child_environment

MIB = 1 << 20
DOCKER = Machine(cpu_count=8, memory_available_bytes=1 << 34, shared_memory_bytes=64 * MIB)


@pytest.mark.parametrize(
    ("ranks", "fits"), [(1, True), (2, True), (8, True), (12, True), (13, False), (16, False)]
)
def test_dockers_default_size_is_enough_for_12_ranks(ranks: int, fits: bool) -> None:
    assert (shortage(ranks, DOCKER) is None) is fits
    enough = dataclasses.replace(DOCKER, shared_memory_bytes=needed_bytes(ranks))
    assert shortage(ranks, enough) is None
    assert shortage(ranks, dataclasses.replace(enough, shared_memory_bytes=needed_bytes(ranks) - 1))


def test_the_error_gives_the_required_size() -> None:
    text = shortage(16, DOCKER)
    assert text is not None
    assert "16 ranks need 84 MiB in /dev/shm, but 64 MiB are free" in text
    assert "docker run --shm-size=128m" in text


@pytest.mark.parametrize(("engine", "degree", "free"), [("MPI", 4, 16), ("MPI", "max", 1), ("Python", 1, 1)])
def test_a_shortage_is_reported_before_the_model_is_downloaded(
    engine: str, degree: int | str, free: int
) -> None:
    machine = dataclasses.replace(DOCKER, shared_memory_bytes=free * MIB)
    config = LmiConfig(engine=engine, options=EngineOptions(tensor_parallel_degree=degree))
    [reason] = obstacles(config, machine)
    assert "shared memory is too small" in reason
    assert obstacles(config, dataclasses.replace(DOCKER, shared_memory_bytes=None)) == ()


def test_free_shared_memory_is_detected(tmp_path: Path) -> None:
    assert detect({}, tmp_path).shared_memory_bytes is None
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    status = os.statvfs(tmp_path)
    found = detect({}, tmp_path).shared_memory_bytes
    assert found is not None
    assert 0 < found <= status.f_blocks * status.f_frsize


def test_serve_exits_with_the_reason(tmp_path: Path) -> None:
    require(NEW_MOUNTS)
    (tmp_path / "serving.properties").write_text("option.tensor_parallel_degree=2\n")
    serve = shlex.join([sys.executable, "-m", "container", "serve", str(tmp_path), "--port", "0"])
    result = subprocess.run(
        [*NEW_MOUNTS, "sh", "-c", f"mount -t tmpfs -o size=8m tmpfs /dev/shm && exec {serve}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=child_environment(),
    )
    assert result.returncode == 1, result.stderr
    assert "2 ranks need 14 MiB in /dev/shm, but 8 MiB are free" in result.stderr
    assert "Traceback" not in result.stderr
