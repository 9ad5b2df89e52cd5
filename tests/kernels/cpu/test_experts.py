"""Recorded native experts against fp64."""

from __future__ import annotations

import pytest
import torch

from lmi_kernels import ExpertWeights, LinearWeight, experts
from lmi_kernels.cpu.binding import bind
from lmi_kernels.cpu.recorder import Recorder, Rows
from lmi_kernels.cpu.structs import Function, Step
from lmi_kernels.cpu.team import Team
from lmi_kernels.cpu.weight import NativeWeight, Storage
from tests.kernels.references.activate import TORCH_ACTIVATIONS, Activation
from tests.kernels.references.experts import experts_reference
from tests.support.seeds import fresh_generator

_ROWS, _HIDDEN, _MIDDLE, _EXPERTS = 23, 36, 50, 6


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("gated", list(TORCH_ACTIVATIONS))
def test_experts_equal_the_reference(team: Team, gated: Activation, renormalize: bool) -> None:
    check(team, gated, renormalize, _HIDDEN, _MIDDLE, (Storage.FP32, Storage.FP32), 1e-5)


@pytest.mark.parametrize("storages", [(Storage.INT8, Storage.FP32), (Storage.FP32, Storage.INT8)])
@pytest.mark.parametrize(("hidden", "middle"), [(36, 50), (50, 36)])
def test_the_products_of_an_expert_may_have_different_storages(
    team: Team, storages: tuple[Storage, Storage], hidden: int, middle: int
) -> None:
    """The rows need scratch for both storages, whichever product is wider."""
    check(team, "silu", True, hidden, middle, storages, 0.1)


def check(
    team: Team,
    gated: Activation,
    renormalize: bool,
    hidden: int,
    middle: int,
    storages: tuple[Storage, Storage],
    tolerance: float,
) -> None:
    """storages: of gate and up, and of down."""
    generator = fresh_generator()
    x = torch.randn(_ROWS, hidden, generator=generator)
    logits = torch.randn(_ROWS, _EXPERTS, generator=generator).round(decimals=1)  # with ties
    logits[:, 0] -= 9
    gate_up = torch.randn(_EXPERTS, 2 * middle, hidden, generator=generator) / hidden**0.5
    down = torch.randn(_EXPERTS, hidden, middle, generator=generator) / middle**0.5
    gate = Function[gated.upper()]
    pairs = tuple(
        (
            LinearWeight(None, None, None, NativeWeight(team, first, None, gate, storages[0])),
            LinearWeight(None, None, None, NativeWeight(team, second, storage=storages[1])),
        )
        for first, second in zip(gate_up, down, strict=True)
    )
    recorder = Recorder(team, _ROWS)
    rows, scores = recorder.gather(x, hidden), recorder.gather(logits, _EXPERTS)
    total = experts(rows, scores, ExpertWeights(pairs, None, gated), 3, renormalize=renormalize)
    assert isinstance(total, Rows)
    places = torch.arange(_ROWS, dtype=torch.int32)
    found = bind(recorder, total).run(Step(num_places=_ROWS, places=places.data_ptr()))
    (expected,) = experts_reference(x, logits, gate_up, down, 3, None, renormalize, gated)
    torch.testing.assert_close(found.double(), expected, rtol=10 * tolerance, atol=tolerance)
