"""Native calls of a recorded model: they are short enough for heartbeats, and few for small steps."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from engines.layers.rotary import RotaryTables
from engines.models import native
from engines.models.decoder import Model
from engines.stopwatch import Stopwatch
from lmi_kernels.cpu import OpKind, Step, StepInput, Team
from lmi_kernels.cpu.binding import Recording
from lmi_kernels.cpu.structs import Add
from lmi_kernels.cpu.team import Program

_NUM_OPS = 160


class _IdleTeam(Team):
    """A team that computes nothing."""

    def __init__(self) -> None:
        pass

    def run(self, program: Program, step: Step, first: int = 0, count: int | None = None) -> None:
        pass

    def seconds(self, kinds: Iterable[OpKind]) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("num_rows", "num_calls"), [(1, 1), (16, 2), (64, 5), (128, 10), (256, 10), (512, 20), (8192, _NUM_OPS)]
)
def test_long_steps_run_in_short_calls(
    num_rows: int, num_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = _IdleTeam()
    heartbeats: list[None] = []
    recording = Recording(team, [Program([Add()] * _NUM_OPS)], torch.empty(0, 0), None)
    for name in ("record_forward", "_record_head"):
        monkeypatch.setattr(native, name, lambda *_: recording)
    tables: RotaryTables = {}
    model = native.RecordedModel(
        cast(Model, SimpleNamespace(logits=None, is_screened=False)), None, tables, team, num_rows, 1, None
    )
    step_input = cast(StepInput, SimpleNamespace(step=Step(num_rows=num_rows)))
    model.forward(step_input, Stopwatch(time.perf_counter, show_alive=lambda: heartbeats.append(None)))
    assert len(heartbeats) == num_calls
