from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from container.run.launch import SUM_ORDER, mpirun_command
from container.run.mpi import find_mpirun
from engines.parallel import Communicator, NcclCommunicator, create_store, make_communicator
from tests.support.paths import REPO_ROOT, child_environment

CPU = torch.device("cpu")


def test_a_single_rank_needs_no_communication(tmp_path: Path) -> None:
    comm = make_communicator(1, CPU, tmp_path)
    assert type(comm) is Communicator
    assert (comm.rank, comm.world_size) == (0, 1)
    tensor = torch.arange(4.0)
    assert comm.all_reduce(tensor) is tensor
    assert comm.broadcast(tensor) is tensor
    gathered = comm.gather_columns(tensor.view(2, 2), [2])
    assert gathered is not None
    assert torch.equal(gathered, torch.arange(4.0).view(2, 2))
    assert comm.all_reduce_max(3) == 3
    assert comm.all_reduce_min(7) == 7
    with pytest.raises(RuntimeError, match="a single rank receives no plans"):
        comm.receive_plan(0.0)


@pytest.mark.parametrize("widths", [[3, 3], [4, 3], [3, 4]])
def test_nccl_gathers_columns_of_different_widths(widths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.arange(5.0 * sum(widths)).view(5, -1)
    parts = whole.split(widths, dim=1)
    sent: list[torch.Tensor] = []

    def gather(tensor: torch.Tensor, received: list[torch.Tensor] | None) -> None:
        assert tensor.is_contiguous()
        sent.insert(0, tensor)
        if received is not None:
            for part, target in zip(sent, received, strict=True):
                assert target.shape == part.shape
                target.copy_(part)

    monkeypatch.setattr(torch.distributed, "gather", gather)
    gathered = []
    for rank in (1, 0):
        comm = NcclCommunicator.__new__(NcclCommunicator)
        comm.rank = rank
        gathered.append(comm.gather_columns(parts[rank], widths))
    other, first = gathered
    assert other is None
    assert first is not None
    assert torch.equal(first, whole)


LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def _listening_sockets() -> dict[str, str]:
    """Return the addresses on which this process listens, by inode: /proc/net contains other processes' too."""
    links = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists the folder
            links.add(str(descriptor.readlink()))
    sockets = {}
    for table in ("tcp", "tcp6"):
        path = Path("/proc/self/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
                sockets[fields[9]] = fields[1].split(":")[0]
    return sockets


def test_the_store_listens_on_loopback_only() -> None:
    before = _listening_sockets()
    store = create_store(Communicator())
    added = _listening_sockets().items() - before.items()
    assert added
    assert {address for _, address in added} <= LOOPBACK
    store.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.mpi
@pytest.mark.parametrize("degree", [2, pytest.param(3, marks=pytest.mark.long)])
def test_mpi_ranks_communicate(degree: int, tmp_path: Path) -> None:
    script = Path(__file__).with_name("communicator_ranks.py")
    command = [sys.executable, str(script), str(degree), str(tmp_path)]
    done = subprocess.run(
        mpirun_command(find_mpirun(os.environ), degree, os.geteuid() == 0, command),
        env=child_environment({"OMP_NUM_THREADS": "1", **(SUM_ORDER if degree > 2 else {})}),
        cwd=REPO_ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(degree):
        found = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert found.pop("idle seconds") < 0.5, "an idle rank uses CPU time"
        assert found == {
            "type": "MpiCommunicator",
            "rank": rank,
            "size": degree,
            "sum": [True, [degree * (degree + 1) / 2]],
            "inference sum": [degree] * 3,
            "sums of some rows": [True] * 3,
            "broadcast": [True, [40]],
            "gathered 3": True if rank == 0 else None,
            "gathered 1": True if rank == 0 else None,
            "exchanged torch.float32": True,
            "exchanged torch.bfloat16": True,
            **{
                f"shared {size}": [[0] * degree, [[rank + 1] for rank in range(degree)]]
                for size in (64, 5000)
            },
            **{f"shared {size} sizes": [size] * degree for size in (64, 5000)},
            "all_reduce_max": [0, degree - 1],
            "all_reduce_min": 100 - (degree - 1),
            "plans": [True] * 8,
        }


def test_a_number_of_ranks_other_than_configured_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SimpleNamespace(Get_size=lambda: 1)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=world)))
    with pytest.raises(RuntimeError, match="1 MPI ranks were started, but the configuration requires 2"):
        make_communicator(2, CPU, tmp_path)
