"""Communication between ranks. Communicators are passed as arguments, never global.

`Communicator` is a single rank. `MpiCommunicator` sends CPU tensors with MPI, `NcclCommunicator` GPU tensors with NCCL.
Both send plans, which are bytes, over UNIX sockets. Native CPU kernels need only memory that the ranks share.
"""

from __future__ import annotations

import mmap
import os
import socket
from multiprocessing import reduction
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engines.partition import Shard

_MAX_PLAN_BYTES = 256 * 1024 * 1024


class Communicator:
    """The ranks of one model replica. This base class is a group of one rank."""

    rank = 0
    world_size = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a contiguous tensor over all ranks, in place; returns it."""
        return tensor

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite each rank's contiguous tensor with rank 0's; returns it."""
        return tensor

    def gather_columns(self, tensor: torch.Tensor, widths: list[int]) -> torch.Tensor | None:
        """Concatenate the ranks' [rows, widths[r]] tensors along columns on rank 0; return None on the others."""
        return tensor

    def exchange_columns(self, rows: torch.Tensor, columns: Shard, out: torch.Tensor) -> None:
        """Send each rank its columns of a matrix whose rows are distributed over the ranks.

        rows: [own rows, all columns], on the CPU; the ranks' rows follow each other in the order of ranks.
        out: [all rows, columns.size], contiguous, of the same dtype, is overwritten.
        """
        out.copy_(rows[:, columns.start : columns.stop])

    def share(self, num_bytes: int) -> list[torch.Tensor]:
        """Return memory of each rank that all ranks read and write, [num_bytes], uint8, at first 0. All ranks call this
        together."""
        return [torch.zeros(num_bytes, dtype=torch.uint8)]

    def send_plan(self, plan: bytes) -> None:
        """Send rank 0's plan to all other ranks."""

    def receive_plan(self, timeout: float) -> bytes | None:
        """Return rank 0's next plan; None if it does not arrive within `timeout` seconds. Called on the other ranks."""
        raise RuntimeError("a single rank receives no plans")

    def all_reduce_max(self, value: int) -> int:
        """Return the largest value of all ranks, on every rank."""
        return -self.all_reduce_min(-value)

    def all_reduce_min(self, value: int) -> int:
        """Return the smallest value of all ranks, on every rank."""
        return value

    def abort(self) -> None:
        """End all ranks at once, with an exit code other than 0."""
        os._exit(1)

    def close(self) -> None:
        """Leave the group; all ranks must call this. CUDA graphs that recorded its all-reduces must be gone."""


class MpiCommunicator(Communicator):
    """Ranks of one host, started by mpirun, with tensors on the CPU.

    Plans are not sent with MPI: a rank that waits in a blocking MPI call would keep a core busy.
    """

    def __init__(self, comm: Any, socket_directory: Path) -> None:
        """comm: communicator of mpi4py; socket_directory: a folder that only this user may enter."""
        self._comm = comm
        self.rank = comm.Get_rank()
        self.world_size = comm.Get_size()
        self._gathered = torch.empty(0)
        address = str(socket_directory / "plans.sock")
        self._plans: list[Connection]
        """On rank 0, the connections to all other ranks; on each other rank, the one to rank 0."""
        if self.rank == 0:
            with Listener(address, "AF_UNIX", backlog=self.world_size) as listener:
                comm.Barrier()
                self._plans = [listener.accept() for _ in range(1, self.world_size)]
        else:
            comm.Barrier()
            self._plans = [Client(address, "AF_UNIX")]

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

    def exchange_columns(self, rows: torch.Tensor, columns: Shard, out: torch.Tensor) -> None:
        from mpi4py import MPI

        ranges = np.empty((self.world_size, 3), dtype=np.int64)
        self._comm.Allgather(np.array([columns.start, columns.stop, len(rows)], dtype=np.int64), ranges)
        parts = [rows[:, start:stop].contiguous().view(-1) for start, stop, _ in ranges]
        size = rows.element_size()
        sent = torch.cat(parts).view(torch.uint8).numpy(), [part.numel() * size for part in parts]
        received = (
            out.view(-1).view(torch.uint8).numpy(),
            [int(count) * columns.size * size for count in ranges[:, 2]],
        )
        self._comm.Alltoallv([*sent, MPI.BYTE], [*received, MPI.BYTE])

    def share(self, num_bytes: int) -> list[torch.Tensor]:
        # Not in /dev/shm, which is small in containers.
        part = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.rank == 0:
            file = os.memfd_create("lmi-ranks")
            os.truncate(file, part * self.world_size)
            for connection in self._plans:
                reduction.send_handle(connection, file, None)
        else:
            file = reduction.recv_handle(self._plans[0])
        memory = mmap.mmap(file, part * self.world_size)
        os.close(file)
        parts = torch.frombuffer(memory, dtype=torch.uint8).view(self.world_size, part)
        return [each[:num_bytes] for each in parts]

    def send_plan(self, plan: bytes) -> None:
        for connection in self._plans:
            connection.send_bytes(plan)

    def receive_plan(self, timeout: float) -> bytes | None:
        plans = self._plans[0]
        try:
            return plans.recv_bytes(_MAX_PLAN_BYTES) if plans.poll(timeout) else None
        except (EOFError, OSError):
            os._exit(1)  # rank 0 has ended, and has reported why

    def all_reduce_min(self, value: int) -> int:
        from mpi4py import MPI

        buffer = np.array([value], dtype=np.int64)
        self._comm.Allreduce(MPI.IN_PLACE, buffer, op=MPI.MIN)
        return int(buffer[0])

    def abort(self) -> None:
        self._comm.Abort(1)

    def close(self) -> None:
        for connection in self._plans:
            connection.close()


class NcclCommunicator(MpiCommunicator):
    """Ranks of one host with one GPU each. Tensors are sent with NCCL."""

    def __init__(self, comm: Any, socket_directory: Path, device: torch.device) -> None:
        super().__init__(comm, socket_directory)
        torch.distributed.init_process_group(
            "nccl",
            store=create_store(self),
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
        # NCCL gathers equal shapes only: pad to the widest part, and cut the result.
        widest = max(widths)
        if tensor.shape[1] < widest:
            tensor = torch.nn.functional.pad(tensor, (0, widest - tensor.shape[1]))
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in widths] if self.rank == 0 else None
        torch.distributed.gather(tensor, parts)
        if parts is None:
            return None
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)

    def close(self) -> None:
        torch.distributed.destroy_process_group()
        super().close()


def create_store(comm: Communicator) -> Any:
    """Create the store through which the ranks start a process group. All ranks must call this.

    Rank 0 opens the port itself, because a TCPStore would listen on all interfaces.
    """
    listener = socket.create_server(("127.0.0.1", 0)) if comm.rank == 0 else None
    port = comm.all_reduce_min(listener.getsockname()[1] if listener else 65536)
    return torch.distributed.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1",
        port,
        comm.world_size,
        is_master=listener is not None,
        wait_for_workers=False,
        use_libuv=False,
        master_listen_fd=listener.detach() if listener else None,
    )


def make_communicator(world_size: int, device: torch.device, socket_directory: Path) -> Communicator:
    """Create the communicator for a number of ranks and a device. A single rank does not load MPI.

    Raises:
        RuntimeError: the number of ranks that MPI started differs from the configuration.
    """
    if world_size == 1:
        return Communicator()
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_size() != world_size:
        raise RuntimeError(
            f"{MPI.COMM_WORLD.Get_size()} MPI ranks were started, but the configuration requires {world_size}"
        )
    if device.type == "cuda":
        return NcclCommunicator(MPI.COMM_WORLD, socket_directory, device)
    return MpiCommunicator(MPI.COMM_WORLD, socket_directory)
