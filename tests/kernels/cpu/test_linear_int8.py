"""Native int8 linears against exact sums of the same integers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lmi_kernels.cpu.library import INSTRUCTIONS, Library
from lmi_kernels.cpu.structs import Epilogue, Experts, Function, Step, Storage
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.cpu.weight import NativeWeight
from tests.kernels.cpu import linears
from tests.kernels.cpu.linears import multiply
from tests.support.seeds import fresh_generator


@pytest.fixture(params=INSTRUCTIONS)
def library(request: pytest.FixtureRequest, open_library: Callable[[str], Library | None]) -> Library:
    library = open_library(request.param)
    if library is None:
        pytest.skip(f"this processor has no {request.param} instructions")
    return library


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Quantize rows and columns, sum in int64, scale in fp64."""
    rows, row_scales = linears.quantize(x)
    columns, column_scales = linears.quantize(weight)
    product = (rows @ columns.T) * row_scales.double() * column_scales.double().T
    return product if bias is None else product + bias.double()


def _equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether the difference is within the rounding of two scales and a bias. Sums of integers are exact."""
    size = expected.abs().amax()
    return bool(((found.double() - expected).abs() <= 4e-7 * size).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", linears.SHAPES)
def test_products_are_exact_and_bit_identical_for_any_number_of_rows(
    team: Team, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    generator = fresh_generator()
    weight = torch.randn(*shape, generator=generator).to(dtype)
    bias = torch.randn(shape[0], generator=generator)
    native = NativeWeight(team, weight, bias, storage=Storage.INT8)
    x = torch.randn(linears.MAX_ROWS, shape[1], generator=generator)
    assert _equal(linears.multiply_any_rows(team, native, x), _product(x, weight, bias))


def _integers(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Make rows of integers in [-127, 127]. Each starts with 127, so that it is quantized without loss."""
    numbers = torch.randint(-127, 128, (rows, columns), generator=generator).float()
    numbers[:, 0] = 127
    return numbers


@pytest.mark.parametrize("in_features", [64, 128, 1536])
def test_integer_sums_are_exact(team: Team, in_features: int) -> None:
    generator = fresh_generator()
    weight, x = _integers(70, in_features, generator), _integers(37, in_features, generator)
    weight[1:3], x[1:3] = 127, 127
    weight[2:4, 1:], x[2:4, 1:] = -127, -127
    native = NativeWeight(team, linears.rotate(weight), storage=Storage.INT8)
    y = multiply(team, native, linears.rotate(x))
    assert torch.equal(y.long(), x.long() @ weight.long().T)


def test_products_are_bit_identical_for_any_instruction_set_and_number_of_threads(
    open_library: Callable[[str], Library | None],
) -> None:
    generator = fresh_generator()
    weight, bias = torch.randn(300, 190, generator=generator), torch.randn(300, generator=generator)
    x = torch.randn(41, 190, generator=generator) * torch.logspace(-20, 20, 41)[:, None]
    found = []
    for name in INSTRUCTIONS:
        if (library := open_library(name)) is None:
            continue
        native = NativeWeight(Team(library, 2), weight, bias, storage=Storage.INT8)
        for count in (1, 2, 5):
            y = torch.zeros(41, 300)
            found.append(multiply(Team(library, count), native, x, y, Epilogue.ACCUMULATE))
    assert all(torch.equal(found[0], each) for each in found[1:])


def test_accumulate_adds_to_the_output(team: Team) -> None:
    linears.check_accumulation(team, Storage.INT8)


@pytest.mark.parametrize("middle", [1, 16, 50])
def test_gated_weights(team: Team, middle: int) -> None:
    linears.check_gates(team, middle, Storage.INT8, _product)


def test_strided_inputs_and_outputs(team: Team) -> None:
    generator = fresh_generator()
    weight = torch.randn(40, 30, generator=generator)
    x = torch.randn(9, 50, generator=generator)[:, 7:37]
    y = torch.full((9, 60), 5.0)
    multiply(team, NativeWeight(team, weight, storage=Storage.INT8), x, y[:, 3:43])
    assert _equal(y[:, 3:43], _product(x, weight))
    assert (y[:, :3] == 5).all()
    assert (y[:, 43:] == 5).all()


def test_zero_rows_and_non_finite_rows(team: Team) -> None:
    generator = fresh_generator()
    weight = torch.randn(33, 20, generator=generator)
    weight[5] = 0
    bias = torch.randn(33, generator=generator)
    x = torch.randn(6, 20, generator=generator)
    x[0], x[1], x[2, 3], x[3, 19] = 0, 1e-42, torch.inf, torch.nan
    y = multiply(team, NativeWeight(team, weight, bias, storage=Storage.INT8), x)
    assert torch.equal(y[:2], bias.expand(2, -1))
    assert y[2:4].isnan().all()
    assert y[4:].isfinite().all()
    assert torch.equal(y[4:, 5], bias[5].expand(2))


def test_an_outlier_costs_other_numbers_little_precision(team: Team) -> None:
    """Rotation spreads an outlier over 64 numbers. Without it, the error would be about 20 %."""
    generator = fresh_generator()
    weight = torch.randn(200, 576, generator=generator)
    x = torch.randn(40, 576, generator=generator)
    x[:, 100] = 100
    weight[:, 100] = 0
    y = multiply(team, NativeWeight(team, weight, storage=Storage.INT8), x)
    exact = x.double() @ weight.double().T
    assert (y - exact).norm() <= 0.06 * exact.norm()


def test_experts_multiply_their_own_rows(team: Team) -> None:
    generator = fresh_generator()
    rows, hidden, middle, num_experts, top_k = 45, 40, 70, 5, 2
    x = torch.randn(rows, hidden, generator=generator)
    logits = torch.randn(rows, num_experts, generator=generator)
    logits[:, 3] = -100
    logits[0, 3] = 100
    gate_up = torch.randn(num_experts, 2 * middle, hidden, generator=generator).bfloat16()
    down = torch.randn(num_experts, hidden, middle, generator=generator).bfloat16()
    weights = [
        [NativeWeight(team, each, None, gate, Storage.INT8) for each in stack]
        for stack, gate in ((gate_up, Function.SILU), (down, None))
    ]
    handles = [torch.tensor([each.handle for each in stack]) for stack in weights]
    integers = torch.full((rows * top_k, -(-max(hidden, middle) // 64) * 64), 77, dtype=torch.int8)
    row_scales = torch.full((rows * top_k,), torch.nan)
    choices = torch.empty(rows * top_k * 2 + num_experts + 1, dtype=torch.int32)
    shares = torch.empty(rows * top_k)
    inputs, parts = torch.empty(rows * top_k, hidden), torch.empty(rows * top_k, hidden)
    intermediate = torch.empty(rows * top_k, -(-middle // 16) * 16)
    y = torch.full((rows, hidden), torch.nan)
    experts = Experts(
        x=x.data_ptr(),
        logits=logits.data_ptr(),
        logits_stride=logits.stride(0),
        y=y.data_ptr(),
        x_stride=hidden,
        y_stride=hidden,
        gate_up=handles[0].data_ptr(),
        down=handles[1].data_ptr(),
        num_experts=num_experts,
        top_k=top_k,
        gate=Function.SILU,
        renormalize=True,
        choices=choices.data_ptr(),
        shares=shares.data_ptr(),
        inputs=inputs.data_ptr(),
        middle=intermediate.data_ptr(),
        parts=parts.data_ptr(),
        integers=integers.data_ptr(),
        row_scales=row_scales.data_ptr(),
    )
    team.run(Program([experts]), Step(num_rows=rows))
    best, which = logits.topk(top_k)
    expected = torch.zeros(rows, hidden, dtype=torch.float64)
    for row in range(rows):
        for share, expert in zip(best[row].double().softmax(0), which[row], strict=True):
            gate, up = _product(x[row : row + 1], gate_up[expert]).chunk(2, dim=-1)
            passed = (torch.nn.functional.silu(gate) * up).float()
            expected[row] += share * _product(passed, down[expert])[0]
    assert (y.double() - expected).norm() <= 1e-3 * expected.norm()


def test_embedding_from_an_int8_table(team: Team) -> None:
    table = torch.randn(50, 70, generator=fresh_generator())
    integers, scales = linears.quantize(table)
    expected = linears.rotate(integers * scales)[:, :70]
    linears.check_embedding(team, NativeWeight(team, table, storage=Storage.INT8), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("in_features", [64, 192])
def test_quantized_numbers_are_within_half_a_step(team: Team, dtype: torch.dtype, in_features: int) -> None:
    weight = torch.randn(100, in_features, generator=fresh_generator()).to(dtype)
    weight[3] = 0
    native = NativeWeight(team, [weight[:37], weight[37:]], storage=Storage.INT8)
    # The rotated rows of the unit matrix are quantized without loss.
    restored = multiply(team, native, torch.eye(in_features)).T
    assert (restored[3] == 0).all()
    rotated = linears.rotate(weight)
    error = (linears.rotate(restored) - rotated).abs()
    assert (error <= rotated.abs().amax(dim=1, keepdim=True) / 127 * 0.5001).all()


def test_weights_that_are_not_finite_give_nan(team: Team) -> None:
    weight = torch.randn(40, 20, generator=fresh_generator())
    weight[7, 3], weight[8, 19] = torch.inf, torch.nan
    y = multiply(team, NativeWeight(team, weight, storage=Storage.INT8), torch.ones(2, 20))
    assert y[:, 7:9].isnan().all()
    assert y[:, [*range(7), *range(9, 40)]].isfinite().all()


def test_a_storage_that_cannot_hold_the_dtype_is_rejected(team: Team) -> None:
    with pytest.raises(ValueError, match="cannot be stored as FP16"):
        NativeWeight(team, torch.zeros(1, 1), storage=Storage.FP16)
