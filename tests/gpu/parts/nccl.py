"""Part `nccl`: `NcclCommunicator` with one rank: its operations under graph capture, the engine with it, and its
shutdown, which must not hang. Several ranks need several GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from engines.parallel import Communicator, NcclCommunicator
from tests.gpu.context import Context
from tests.gpu.engine import Engine, Limits, free, greedy, random_prompts, run_requests
from tests.gpu.shapes import reduced, write

MODEL = "llama-3-8b"


_WORLD = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 1, Barrier=lambda: None)
"""Replacement of an MPI communicator with one rank, so that MPI is not required."""


class _OneRank(NcclCommunicator):
    def all_reduce_min(self, value: int) -> int:
        return value

    def all_reduce_max(self, value: int) -> int:
        return value


def run(context: Context) -> None:
    results = context.results
    if context.device.type == "cuda":
        comm: Any = _OneRank(_WORLD, context.folder, context.device)
    else:
        comm = Communicator()
    with results.guard("collectives in a graph"):
        _check_graph(context, comm)
    with results.guard("the engine with NCCL"):
        _check_engine(context, comm)
    free(context.device)
    comm.close()
    results.check("the process group is closed before the process exits", True)


@torch.inference_mode()
def _check_graph(context: Context, comm: Communicator) -> None:
    device = context.device
    x = torch.arange(4096, dtype=torch.float32, device=device).view(64, 64)

    def work() -> list[torch.Tensor]:
        gathered = comm.gather_columns(x + 1, [64])
        assert gathered is not None
        return [comm.all_reduce(x * 2), comm.broadcast(x + 3), gathered]

    results = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = work()
        x.add_(1.0)
        graph.replay()
        torch.cuda.synchronize(device)
        del graph
    expected = [x * 2, x + 3, x + 1]
    same = all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    context.results.check("sums, broadcasts and gathers with one rank in a graph", same)


def _check_engine(context: Context, comm: Communicator) -> None:
    """Graphs hold NCCL operations. Tokens equal those without NCCL, and dropping the graphs allows a clean shutdown."""
    folder = write(reduced(MODEL, context.smoke), context.folder / MODEL)
    limits = Limits(context.size(16, 2), context.size(200, 30), context.size(256, 16), context.size(4096, 64))
    tokens = []
    for each in (Communicator(), comm):
        engine = Engine(folder, context.device, limits, comm=each)
        prompts = random_prompts(engine.config.vocab_size, context.size((5, 30, 100, 64), (3, 5)), 0)
        count = context.size(24, 2)
        requests = [greedy(f"request {i}", prompt, count) for i, prompt in enumerate(prompts)]
        outcome = run_requests(engine.start(), requests, context.device)
        tokens.append(outcome.tokens)
        engine.runner.close()
        del engine
        free(context.device)
    context.results.check("the engine's tokens equal those without NCCL", tokens[0] == tokens[1])
