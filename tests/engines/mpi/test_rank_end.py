"""Shutdown of a rank: first its graphs are dropped, then its process group, then the process ends."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines.health import StatusBoard
from engines.mpi import worker
from engines.mpi.runner.decode_graphs import DecodeGraphs, DecodeInputs, DecodeOutputs
from engines.parallel import NcclCommunicator

CPU = torch.device("cpu")


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_drops_its_graphs_before_it_leaves_its_group(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    rank = SimpleNamespace(
        comm=SimpleNamespace(rank=number, close=lambda: done.append("group")),
        model=SimpleNamespace(close=lambda: done.append("graphs")),
        executor=SimpleNamespace(run_next_plan=lambda: bool(done.append("followed"))),
    )
    monkeypatch.setattr(worker, "_start", lambda *arguments: rank)
    monkeypatch.setattr(worker, "_serve", lambda *arguments: done.append("served"))
    monkeypatch.setattr(worker.MpiEngineConfig, "from_json", lambda text: None)
    StatusBoard.create(tmp_path / "status", 2)
    config = tmp_path / "config.json"
    config.write_text("{}")
    arguments = ["--config", str(config), "--status", str(tmp_path / "status"), "--address", "ipc://x"]
    assert worker.main(arguments) == 0
    assert done == ["followed" if number else "served", "graphs", "group"]


class _Graph:
    """A fake CUDA graph. A real one references the communicator of its recorded all-reduces."""

    def replay(self) -> None:
        """Do nothing."""


def test_dropped_graphs_are_garbage_collected() -> None:
    recorded: list[weakref.ref[_Graph]] = []

    def decode(inputs: DecodeInputs) -> DecodeOutputs:
        tokens = inputs.numbers[0].long()
        return DecodeOutputs(tokens, tokens >= 0, torch.zeros(len(tokens), 3))

    def record(call: Callable[[], DecodeOutputs]) -> tuple[Callable[[], None], DecodeOutputs]:
        graph = _Graph()
        recorded.append(weakref.ref(graph))
        return graph.replay, call()

    graphs = DecodeGraphs(decode, CPU, record)
    graphs.capture([1, 2, 4], padding_row=9)
    gc.collect()
    assert graphs.bucket(3) == 4
    assert all(graph() is not None for graph in recorded)
    graphs.drop()
    gc.collect()
    assert [graph() for graph in recorded] == [None] * 3
    assert graphs.bucket(1) == 0


def test_closing_the_communicator_destroys_the_process_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    comm: Any = SimpleNamespace(
        Get_rank=lambda: 0, Get_size=lambda: 1, Barrier=lambda: None, Allreduce=lambda *arguments, op: None
    )
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(IN_PLACE=0, MAX=1, MIN=2)))
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda *arguments, **options: calls.append("init")
    )
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: calls.append("destroy"))
    communicator = NcclCommunicator(comm, tmp_path, CPU)
    communicator.close()
    assert calls == ["init", "destroy"]
