"""Native elementwise functions, alone and recorded, against fp64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lmi_kernels import activate, scale, softcap
from lmi_kernels.cpu.binding import bind
from lmi_kernels.cpu.recorder import Recorder, Rows
from lmi_kernels.cpu.structs import Elementwise, Function, Step
from lmi_kernels.cpu.team import Program, Team
from tests.kernels.cpu.conftest import Tensors
from tests.kernels.references.activate import TORCH_ACTIVATIONS
from tests.support.randomness import random_seed

_EPS = 2.0**-24
_CAP, _FACTOR = 30.0, 0.78125
_REFERENCES: dict[Function, tuple[float, Callable[[torch.Tensor], torch.Tensor]]] = {
    **{Function[kind.upper()]: (0.0, reference) for kind, reference in TORCH_ACTIVATIONS.items()},
    Function.SCALE: (_FACTOR, lambda x: x * _FACTOR),
    Function.SOFTCAP: (_CAP, lambda x: _CAP * torch.tanh(x / _CAP)),
}


def _apply(team: Team, function: Function, x: torch.Tensor) -> torch.Tensor:
    y = torch.full((len(x), x.shape[1] + 3), 5.0)
    operation = Elementwise(
        x=x.data_ptr(),
        y=y.data_ptr(),
        x_stride=x.stride(0),
        y_stride=y.stride(0),
        width=x.shape[1],
        function=function,
        parameter=_REFERENCES[function][0],
    )
    team.run(Program([operation]), Step(num_rows=len(x)))
    assert (y[:, x.shape[1] :] == 5).all()
    return y[:, : x.shape[1]]


def _inputs() -> torch.Tensor:
    """Make numbers of all magnitudes and both signs, dense near 0, where functions are curved. The width is odd."""
    generator = torch.Generator().manual_seed(random_seed())
    near = torch.randn(7, 501, generator=generator) * torch.tensor([0.1, 0.5, 1, 2, 4, 8, 30])[:, None]
    signs = torch.randn(2, 501, generator=generator).sign()
    return torch.cat((near, signs * 10 ** (torch.rand(2, 501, generator=generator) * 25 - 20)))


@pytest.mark.parametrize("function", list(Function), ids=lambda function: function.name.lower())
def test_functions_are_accurate_to_a_few_units_in_the_last_place(function: Function, team: Team) -> None:
    x = _inputs()
    found = _apply(team, function, x).double()
    wide = x.double().requires_grad_()
    expected = _REFERENCES[function][1](wide)
    (slope,) = torch.autograd.grad(expected.sum(), wide)
    # The bound includes the effect of rounding x itself.
    bound = 6 * _EPS * (expected.detach().abs() + (x * slope.nan_to_num(0)).abs()) + 1e-30
    assert ((found - expected).abs() <= bound).all()


@pytest.mark.parametrize("function", list(Function), ids=lambda function: function.name.lower())
def test_nan_stays_nan_and_nothing_else_becomes_nan(function: Function, team: Team) -> None:
    x = torch.tensor([[torch.nan, 0.0, -0.0, 1e10, -1e10, 80.0, -80.0, 13.5, -13.5, 1e-40]])
    found = _apply(team, function, x)
    assert found[0, 0].isnan()
    expected = _REFERENCES[function][1](x[:, 1:].double())
    torch.testing.assert_close(found[:, 1:].double(), expected, rtol=1e-5, atol=1e-18)


@pytest.mark.parametrize("function", list(Function), ids=lambda function: function.name.lower())
def test_results_are_bit_identical_for_any_instruction_set_threads_and_rows(
    function: Function, everywhere: Callable[[Callable[[Team], Tensors]], Tensors]
) -> None:
    x = _inputs()
    (whole,) = everywhere(lambda team: (_apply(team, function, x),))
    (part,) = everywhere(lambda team: (_apply(team, function, x[2:5]),))
    assert torch.equal(part, whole[2:5])


def test_recorded_operations_match_fp64(team: Team) -> None:
    x = _inputs()
    recorder = Recorder(team, len(x))
    rows = recorder.gather(x, x.shape[1])
    total = softcap(scale(rows, _FACTOR), _CAP)
    for kind in TORCH_ACTIVATIONS:
        total = total + activate(rows, kind)
    assert isinstance(total, Rows)
    places = torch.arange(len(x), dtype=torch.int32)
    found = bind(recorder, total).run(Step(num_places=len(x), places=places.data_ptr()))
    wide = x.double()
    expected = _CAP * torch.tanh(wide * _FACTOR / _CAP) + sum(
        each(wide) for each in TORCH_ACTIVATIONS.values()
    )
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
