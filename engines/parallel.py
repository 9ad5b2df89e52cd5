"""What ranks say to each other. A communicator is an argument, never a global.

`SingleProcess` does nothing, `MpiCommunicator` moves CPU tensors by buffer-based MPI; on GPUs tensors go by NCCL,
bootstrapped over MPI. Plans are bytes and always go by MPI.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

_PLAN_BYTES = 16384
"""What the first message of a plan carries, its length included: nearly all plans are one message."""


class Communicator(Protocol):
    """The ranks of one model replica."""

    rank: int
    world_size: int

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a contiguous tensor over all ranks, in place; returns it."""

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's contiguous tensor at each of them, in place; returns it."""

    def gather_columns(self, tensor: torch.Tensor, widths: list[int]) -> torch.Tensor | None:
        """Put the ranks' [rows, widths[r]] tensors side by side on rank 0; None on the others."""

    def broadcast_plan(self, plan: bytes | None) -> bytes:
        """Rank 0 gives a plan, the others (with None) sleep until it comes."""

    def agree(self, status: int) -> int:
        """The largest status of all ranks, at each of them: 0 means that all is well everywhere."""

    def smallest(self, value: int) -> int:
        """The smallest value of all ranks, at each of them."""

    def abort(self) -> None:
        """End all ranks at once, with an exit code other than 0."""

    def close(self) -> None:
        """Leave the group, as all ranks do. Nothing that has recorded its sums (a CUDA graph) may be left."""


class SingleProcess:
    """One rank: nothing to say."""

    rank = 0
    world_size = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def gather_columns(self, tensor: torch.Tensor, widths: list[int]) -> torch.Tensor | None:
        return tensor

    def broadcast_plan(self, plan: bytes | None) -> bytes:
        if plan is None:
            raise ValueError("the only rank must make the plan itself")
        return plan

    def agree(self, status: int) -> int:
        return status

    def smallest(self, value: int) -> int:
        return value

    def abort(self) -> None:
        os._exit(1)

    def close(self) -> None:
        pass


class MpiCommunicator:
    """Ranks of one host started by mpirun; tensors are on the CPU.

    Between steps a rank sleeps on a datagram socket that rank 0 writes to before it broadcasts: a blocking
    MPI call would burn a core for as long as nobody sends.
    """

    def __init__(self, comm: Any, wake_directory: Path) -> None:
        """`comm` is an mpi4py communicator; `wake_directory` a folder that only this user may enter."""
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.world_size: int = comm.Get_size()
        self._addresses = [str(wake_directory / f"rank-{rank}.sock") for rank in range(self.world_size)]
        self._wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if self.rank != 0:
            self._wake.bind(self._addresses[self.rank])
        comm.Barrier()
        self._gathered = torch.empty(0)
        self._plan = np.zeros(_PLAN_BYTES, dtype=np.uint8)
        self._plan_length = self._plan[:8].view(np.int64)
        self._plan_start = self._plan[8:]

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        from mpi4py import MPI

        self._comm.Allreduce(MPI.IN_PLACE, tensor.numpy())
        return tensor

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        self._comm.Bcast(tensor.numpy())
        return tensor

    def gather_columns(self, tensor: torch.Tensor, widths: list[int]) -> torch.Tensor | None:
        rows = tensor.shape[0]
        if self.rank != 0:
            self._comm.Gatherv(tensor.contiguous().numpy(), None)
            return None
        if self._gathered.numel() < rows * sum(widths):
            self._gathered = torch.empty(rows * sum(widths))
        received = self._gathered[: rows * sum(widths)]
        self._comm.Gatherv(
            tensor.contiguous().numpy(), [received.numpy(), [rows * width for width in widths]]
        )
        starts = [rows * sum(widths[:rank]) for rank in range(self.world_size)]
        parts = [received[start : start + rows * width] for start, width in zip(starts, widths, strict=True)]
        return torch.cat([part.view(rows, -1) for part in parts], dim=1)

    def broadcast_plan(self, plan: bytes | None) -> bytes:
        if plan is not None:
            for address in self._addresses[1:]:
                self._wake.sendto(b"p", address)
            self._plan_length[0] = len(plan)
            first = plan[: len(self._plan_start)]
            self._plan_start[: len(first)] = np.frombuffer(first, dtype=np.uint8)
        else:
            self._wake.recv(1)
        self._comm.Bcast(self._plan)
        length = int(self._plan_length[0])
        if length <= len(self._plan_start):
            return plan if plan is not None else self._plan_start[:length].tobytes()
        rest = np.empty(length - len(self._plan_start), dtype=np.uint8)
        if plan is not None:
            rest[:] = np.frombuffer(plan, dtype=np.uint8)[len(self._plan_start) :]
        self._comm.Bcast(rest)
        return plan if plan is not None else self._plan_start.tobytes() + rest.tobytes()

    def agree(self, status: int) -> int:
        return self._reduce(status, largest=True)

    def smallest(self, value: int) -> int:
        return self._reduce(value, largest=False)

    def abort(self) -> None:
        self._comm.Abort(1)

    def close(self) -> None:
        self._wake.close()

    def _reduce(self, value: int, largest: bool) -> int:
        from mpi4py import MPI

        buffer = np.array([value], dtype=np.int64)
        self._comm.Allreduce(MPI.IN_PLACE, buffer, op=MPI.MAX if largest else MPI.MIN)
        return int(buffer[0])


class NcclCommunicator(MpiCommunicator):
    """Ranks of one host, one GPU each: tensors by NCCL, everything else by MPI."""

    def __init__(self, comm: Any, wake_directory: Path, device: torch.device) -> None:
        super().__init__(comm, wake_directory)
        port = self.smallest(_free_loopback_port() if self.rank == 0 else 65536)
        torch.distributed.init_process_group(
            "nccl",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=self.rank,
            world_size=self.world_size,
            device_id=device,
        )

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        torch.distributed.all_reduce(tensor)
        return tensor

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        torch.distributed.broadcast(tensor, 0)
        return tensor

    def gather_columns(self, tensor: torch.Tensor, widths: list[int]) -> torch.Tensor | None:
        # NCCL gathers equal shapes only: pad to the widest, cut afterwards.
        widest = torch.nn.functional.pad(tensor, (0, max(widths) - tensor.shape[1])).contiguous()
        parts = [torch.empty_like(widest) for _ in widths]
        torch.distributed.all_gather(parts, widest)
        if self.rank != 0:
            return None
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)

    def close(self) -> None:
        torch.distributed.destroy_process_group()
        super().close()


def make_communicator(world_size: int, device: torch.device, wake_directory: Path) -> Communicator:
    """The communicator that fits: MPI is not even loaded for a single rank.

    Raises:
        RuntimeError: MPI started another number of ranks than the configuration says.
    """
    if world_size == 1:
        return SingleProcess()
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_size() != world_size:
        raise RuntimeError(
            f"{MPI.COMM_WORLD.Get_size()} MPI ranks were started, the configuration says {world_size}"
        )
    if device.type == "cuda":
        return NcclCommunicator(MPI.COMM_WORLD, wake_directory, device)
    return MpiCommunicator(MPI.COMM_WORLD, wake_directory)


def _free_loopback_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
