"""The start of the generating process: heartbeats, limits and threads."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines.health import StatusBoard
from engines.python import worker
from engines.python.link import LinkClosed
from engines.python.messages import DISPATCHER, GENERATOR, Ready
from tests.support.dynamic_engine import make_dynamic_config
from tests.support.engine_process import MAX_MODEL_LEN


class OneLayer(torch.nn.Module):
    """A model of one layer that returns its positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Identity()])

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        positions: torch.Tensor = self.layers[0](position_ids)
        return positions


class ClosedLink:
    """A link whose dispatcher exits once the model is loaded."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def receive(self, timeout: float) -> None:
        raise LinkClosed


def test_a_loaded_model_sends_heartbeats_and_has_the_configured_limits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = SimpleNamespace(module=OneLayer(), device=torch.device("cpu"))
    threads: list[int] = []
    timeouts: list[float] = []
    monkeypatch.setattr(worker, "load_model", lambda config: model)
    monkeypatch.setattr(worker, "set_num_threads", lambda count, native: threads.append(count))
    monkeypatch.setattr(worker, "BatchRunner", lambda model, heartbeat, timeout: timeouts.append(timeout))
    config, status = tmp_path / "config.json", tmp_path / "status"
    config.write_text(make_dynamic_config(tmp_path, batch_timeout=41.0).to_json())
    board = StatusBoard.create(status, 2)
    dispatcher, generator = (board.heartbeat_view(index) for index in (DISPATCHER, GENERATOR))
    link: Any = ClosedLink()

    serve = worker._load(Namespace(status=status, config=config), link)
    assert (threads, timeouts) == ([1], [41.0])
    assert [type(message) for message in link.sent] == [Ready]
    assert generator.value > 0

    generator.value = 0.0
    positions = model.module(position_ids=torch.tensor([0, MAX_MODEL_LEN]))
    assert positions.tolist() == [0, MAX_MODEL_LEN - 1]
    assert generator.value > 0, "before the layer"

    generator.value = 0.0
    with pytest.raises(LinkClosed):
        serve()
    assert generator.value > 0, "before it receives a batch"
    assert dispatcher.value == 0.0
