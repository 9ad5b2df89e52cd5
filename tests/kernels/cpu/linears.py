"""A native linear as a program of its own, and checks for all storages."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.structs import Epilogue, Function, Linear, Step, Storage
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.cpu.weight import NativeWeight
from tests.kernels.references.activate import TORCH_ACTIVATIONS
from tests.support.randomness import random_seed


def multiply(
    team: Team, weight: NativeWeight, x: torch.Tensor, y: torch.Tensor, epilogue: Epilogue | None = None
) -> None:
    """Write the products of the rows of x to y. `epilogue` defaults to the weight's."""
    scratch = {
        name: torch.full((size,), 77, dtype=dtype)
        for name, (size, dtype) in weight.scratch_sizes(len(x)).items()
    }
    linear = Linear(
        weight=weight.handle,
        x=x.data_ptr(),
        y=y.data_ptr(),
        x_stride=x.stride(0),
        y_stride=y.stride(0),
        **(weight.epilogue if epilogue is None else {"epilogue": epilogue}),
        **{name: tensor.data_ptr() for name, tensor in scratch.items()},
    )
    team.run(Program([linear]), Step(num_rows=len(x)))


def rotate_by_butterflies(rows: torch.Tensor) -> torch.Tensor:
    """Rotate like `rotate_rows`, but bit-identical to the kernels (sums and differences of `native/rotate.inc`)."""
    rows = torch.nn.functional.pad(rows.float(), (0, -rows.shape[1] % 64)) / 8
    for distance in (1, 2, 4, 8, 16, 32):
        low, high = rows.view(len(rows), -1, 2, distance).unbind(2)
        rows = torch.stack((low + high, low - high), 2).view(len(rows), -1)
    return rows


def check_accumulation(library: Library, team: Team, storage: Storage | None = None) -> None:
    """Check that ACCUMULATE adds exactly the result of STORE to the output."""
    generator = torch.Generator().manual_seed(random_seed())
    native = NativeWeight(library, torch.randn(70, 48, generator=generator), storage=storage)
    x, before = torch.randn(21, 48, generator=generator), torch.randn(21, 70, generator=generator)
    product = torch.empty(21, 70)
    multiply(team, native, x, product)
    y = before.clone()
    multiply(team, native, x, y, Epilogue.ACCUMULATE)
    assert torch.equal(y, before + product)


def check_gates(
    library: Library,
    team: Team,
    middle: int,
    product: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    storage: Storage | None = None,
) -> None:
    """Check gated weights, whose columns are interleaved, with all activations. product: x, weight, bias -> fp64."""
    generator = torch.Generator().manual_seed(random_seed())
    weight = torch.randn(2 * middle, 20, generator=generator).bfloat16()
    bias = torch.randn(2 * middle, generator=generator)
    x = torch.randn(17, 20, generator=generator)
    gate, up = product(x, weight, bias).chunk(2, dim=-1)
    for kind, activation in TORCH_ACTIVATIONS.items():
        y = torch.full((17, -(-middle // 16) * 16), torch.nan)
        multiply(team, NativeWeight(library, weight, bias, Function[kind.upper()], storage), x, y)
        torch.testing.assert_close(y[:, :middle].double(), activation(gate) * up, atol=1e-4, rtol=1e-5)
        assert (y[:, middle:] == 0).all()
