"""Run by mpirun as each rank of test_parallel.py: call every operation of the communicator and save the results."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import torch

from engines.parallel import Communicator, MpiCommunicator, make_communicator
from engines.partition import split_evenly

PLANS = [b"", b"x", *(bytes(i % 251 for i in range(n)) for n in (16375, 16376, 16377, 256000, 9, 0))]
"""Short and long plans, and plans around the size of one message."""
IDLE_S = 1.0


def main() -> None:
    world_size, folder = int(sys.argv[1]), Path(sys.argv[2])
    comm = make_communicator(world_size, torch.device("cpu"), folder)
    found: dict[str, object] = {"type": type(comm).__name__, "rank": comm.rank, "size": comm.world_size}

    summed = torch.full((7, 5), float(comm.rank + 1))
    same = comm.all_reduce(summed)
    found["sum"] = [same is summed, summed.unique().tolist()]
    with torch.inference_mode():
        found["inference sum"] = comm.all_reduce(torch.ones(3)).tolist()

    generator = torch.Generator().manual_seed(comm.rank)
    rows = torch.randn(64, 576, generator=generator) * 3.0**comm.rank
    sums = comm.all_reduce(rows.clone())
    found["sums of some rows"] = [
        torch.equal(comm.all_reduce(rows[a:b].clone()), sums[a:b]) for a, b in ((0, 1), (1, 3), (5, 12))
    ]

    tensor = torch.full((5,), 40 + comm.rank)
    found["broadcast"] = [comm.broadcast(tensor) is tensor, tensor.unique().tolist()]

    whole = torch.arange(3 * 11, dtype=torch.float32).view(3, 11)
    shards = [split_evenly(11, world_size, rank) for rank in range(world_size)]
    own = shards[comm.rank]
    widths = [shard.size for shard in shards]
    for rows in (3, 1, 3):  # the second call reuses a buffer that is larger than needed
        gathered = comm.gather_columns(whole[:rows, own.start : own.stop], widths)
        found[f"gathered {rows}"] = None if gathered is None else torch.equal(gathered, whole[:rows])

    for dtype in (torch.float32, torch.bfloat16):
        matrix = whole.to(dtype)
        own_rows = split_evenly(3, world_size, comm.rank)
        part = torch.empty(3, own.size, dtype=dtype)
        comm.exchange_columns(matrix[own_rows.start : own_rows.stop], own, part)
        found[f"exchanged {dtype}"] = torch.equal(part, matrix[:, own.start : own.stop])

    for size in (64, 5000):  # smaller and larger than a page
        parts = comm.share(size)
        before = [int(part.max()) for part in parts]
        comm.all_reduce_min(0)
        parts[comm.rank][:] = comm.rank + 1
        comm.all_reduce_min(0)
        found[f"shared {size}"] = [before, [part.unique().tolist() for part in parts]]
        found[f"shared {size} sizes"] = [part.numel() for part in parts]

    found["all_reduce_max"] = [comm.all_reduce_max(0), comm.all_reduce_max(comm.rank)]
    found["all_reduce_min"] = comm.all_reduce_min(100 - comm.rank)

    plans = []
    for plan in PLANS:
        plans.append(_broadcast(comm, plan) == plan)
    found["plans"] = plans

    # The other ranks sleep while rank 0 is idle, so their CPU time does not grow.
    before = _cpu_seconds()
    if comm.rank == 0:
        time.sleep(IDLE_S)
    _broadcast(comm, b"end")
    found["idle seconds"] = _cpu_seconds() - before
    assert isinstance(comm, MpiCommunicator) or world_size == 1
    (folder / f"{comm.rank}.json").write_text(json.dumps(found), encoding="utf-8")


def _broadcast(comm: Communicator, plan: bytes) -> bytes:
    if comm.rank == 0:
        comm.send_plan(plan)
        return plan
    received = comm.receive_plan(timeout=600.0)
    assert received is not None
    return received


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
