"""A native linear as a program of its own, and checks for all storages."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.structs import Embed, Epilogue, Function, Linear, Step, Storage
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.cpu.weight import NativeWeight
from tests.kernels.references.activate import TORCH_ACTIVATIONS
from tests.support.seeds import fresh_generator

SHAPES = ((1, 1), (31, 7), (33, 5), (64, 130), (100, 33), (200, 576), (40, 4096), (40, 4097))
"""Output and input features. Panels are copied up to 4,096 input features (`kMaxCopied`)."""
_ROWS = (*range(1, 10), 11, 12, 13, 14, 15, 16, 17, 23, 24, 27, 28, 29, 31, 32, 33, 48, 49, 64, 97)
MAX_ROWS = max(_ROWS)


def multiply(
    team: Team,
    weight: NativeWeight,
    x: torch.Tensor,
    y: torch.Tensor | None = None,
    epilogue: Epilogue | None = None,
) -> torch.Tensor:
    """Write the products of the rows of x to y, by default to new memory. `epilogue` defaults to the weight's."""
    y = torch.full((len(x), weight.out_features), torch.nan) if y is None else y
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
    return y


def rotate(rows: torch.Tensor) -> torch.Tensor:
    """Rotate rows, padded to a multiple of 64, bit-identical to the kernels (sums and differences of `rotate.inc`)."""
    rows = torch.nn.functional.pad(rows.float(), (0, -rows.shape[1] % 64)) / 8
    for distance in (1, 2, 4, 8, 16, 32):
        low, high = rows.view(len(rows), -1, 2, distance).unbind(2)
        rows = torch.stack((low + high, low - high), 2).view(len(rows), -1)
    return rows


def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the integers of rotated rows, int64, and their scales, [num_rows, 1], fp32."""
    rows = rotate(rows)
    largest = rows.abs().amax(dim=1, keepdim=True)
    return (rows * torch.full_like(largest, 127).div(largest)).round().long(), largest / 127


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Compute in fp64."""
    return x.double() @ weight.double().T + bias.double()


def multiply_any_rows(team: Team, weight: NativeWeight, x: torch.Tensor) -> torch.Tensor:
    """Multiply `MAX_ROWS` rows. Check that each row's result is bit-identical among fewer rows."""
    full = multiply(team, weight, x)
    for rows in _ROWS:
        assert torch.equal(multiply(team, weight, x[:rows]), full[:rows]), rows
    return full


def check_products(team: Team, native: NativeWeight, x: torch.Tensor, *weight_and_bias: torch.Tensor) -> None:
    """Check products of any number of rows against fp64, with the precision of fp32."""
    size = product(x.abs(), *(each.abs() for each in weight_and_bias))
    error = (multiply_any_rows(team, native, x).double() - product(x, *weight_and_bias)).abs()
    assert (error <= 3e-6 * size).all()


def check_threads(library: Library, weight: NativeWeight, x: torch.Tensor) -> None:
    """Check that products are bit-identical for any number of threads."""
    first, *others = (multiply(Team(library, count), weight, x) for count in (1, 2, 5))
    assert all(torch.equal(first, other) for other in others)


def check_accumulation(
    team: Team, storage: Storage, dtype: torch.dtype = torch.float32, rows: int = 21
) -> None:
    """Check that ACCUMULATE adds exactly the result of STORE to the output."""
    generator = fresh_generator()
    native = NativeWeight(team, torch.randn(70, 48, generator=generator).to(dtype), storage=storage)
    x, before = torch.randn(rows, 48, generator=generator), torch.randn(rows, 70, generator=generator)
    found = multiply(team, native, x, before.clone(), Epilogue.ACCUMULATE)
    assert torch.equal(found, before + multiply(team, native, x))


def check_gates(
    team: Team,
    middle: int,
    storage: Storage,
    product: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = product,
) -> None:
    """Check gated weights, whose columns are interleaved, with all activations. product: x, weight, bias -> fp64."""
    generator = fresh_generator()
    weight = torch.randn(2 * middle, 20, generator=generator).bfloat16()
    bias = torch.randn(2 * middle, generator=generator)
    x = torch.randn(17, 20, generator=generator)
    gate, up = product(x, weight, bias).chunk(2, dim=-1)
    for kind, activation in TORCH_ACTIVATIONS.items():
        y = torch.full((17, -(-middle // 16) * 16), torch.nan)
        multiply(team, NativeWeight(team, weight, bias, Function[kind.upper()], storage), x, y)
        torch.testing.assert_close(y[:, :middle].double(), activation(gate) * up, atol=1e-4, rtol=1e-5)
        assert (y[:, middle:] == 0).all()


def check_embedding(team: Team, table: NativeWeight, expected: torch.Tensor) -> None:
    """Look up rows of a table with 50 rows. An id beyond it gives zeros."""
    ids = torch.tensor([0, 49, 17, 33, 31, 32, 50], dtype=torch.int32)
    y = torch.full((len(ids), table.in_features), torch.nan)
    embed = Embed(table=table.handle, y=y.data_ptr(), y_stride=y.stride(0), first_id=0)
    team.run(Program([embed]), Step(num_rows=len(ids), ids=ids.data_ptr()))
    assert torch.equal(y[:6], expected[ids[:6].long()])
    assert (y[6] == 0).all()
