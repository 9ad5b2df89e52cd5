"""Ranks as threads of one process: a communicator for tests of several ranks without MPI."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from unittest.mock import patch

import torch

from lmi_kernels.cpu import Step, library, team
from lmi_kernels.cpu.team import Program, Team

T = TypeVar("T")

_TIMEOUT_S = 200


class _Exchange:
    """Values of all ranks, and the barrier that they wait at."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=_TIMEOUT_S)
        self.values: list[Any] = [None] * world_size


class _TeamOfEachRank(Team):
    """A team whose ranks have teams of their own, with their own scratch. In one team, a rank's program would wait for
    the program of another rank, which waits for the team."""

    def __init__(self, native: library.Library, num_threads: int) -> None:
        super().__init__(native, num_threads)
        self._of_rank = threading.local()

    def run(self, program: Program, step: Step) -> None:
        self._own().run(program, step)

    def scratch(self, field: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        return self._own().scratch(field, size, dtype)

    def _own(self) -> Team:
        if not hasattr(self._of_rank, "team"):
            self._of_rank.team = Team(self.library, 1)
        own: Team = self._of_rank.team
        return own


class ThreadCommunicator:
    """The communicator of one rank. Sums are computed in the order of ranks, so all ranks get the same bits."""

    def __init__(self, exchange: _Exchange, rank: int) -> None:
        self._shared = exchange
        self.rank = rank
        self.world_size = len(exchange.values)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.world_size == 1:
            return tensor
        return tensor.copy_(sum(self._exchange(tensor.clone())))

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.copy_(self._exchange(tensor.clone())[0])

    def gather_columns(self, tensor: torch.Tensor, widths: list[int]) -> torch.Tensor | None:
        parts = self._exchange(tensor.clone())
        assert [part.shape[1] for part in parts] == widths
        return torch.cat(parts, dim=1) if self.rank == 0 else None

    def exchange_columns(self, rows: torch.Tensor, columns: Any, out: torch.Tensor) -> None:
        out.copy_(torch.cat(self._exchange(rows.clone()))[:, columns.start : columns.stop])

    def share(self, num_bytes: int) -> list[torch.Tensor]:
        return self._exchange(torch.zeros(num_bytes, dtype=torch.uint8))

    def send_plan(self, plan: bytes) -> None:
        self._exchange(plan)

    def receive_plan(self, timeout: float) -> bytes:
        received: bytes = self._exchange(None)[0]
        return received

    def all_reduce_max(self, value: int) -> int:
        return max(self._exchange(value))

    def all_reduce_min(self, value: int) -> int:
        return min(self._exchange(value))

    def abort(self) -> None:
        self._shared.barrier.abort()

    def close(self) -> None:
        pass

    def _exchange(self, value: Any) -> list[Any]:
        self._shared.values[self.rank] = value
        self._shared.barrier.wait()
        values = list(self._shared.values)
        self._shared.barrier.wait()
        return values


def run_ranks(world_size: int, function: Callable[[ThreadCommunicator], T]) -> list[T]:
    """Run `function` on each rank and return the results. An error of a rank aborts all ranks and is raised."""
    exchange = _Exchange(world_size)

    def run(rank: int) -> T:
        try:
            return function(ThreadCommunicator(exchange, rank))
        except BaseException:
            exchange.barrier.abort()
            raise

    shared = team.shared_team()
    if world_size > 1 and shared is not None:
        shared = _TeamOfEachRank(shared.library, shared.num_threads)
    with patch.object(team, "_team", shared), ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(run, rank) for rank in range(world_size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
