"""Native linears against fp64. The result of a row depends only on the row, bit by bit."""

from __future__ import annotations

import gc

import psutil
import pytest
import torch

from lmi_kernels import LinearWeight, linear
from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.recorder import Recorder
from lmi_kernels.cpu.structs import Function, Storage
from lmi_kernels.cpu.team import Team, shared_team
from lmi_kernels.cpu.weight import NativeWeight
from tests.kernels.cpu import linears
from tests.kernels.cpu.linears import multiply
from tests.support.seeds import fresh_generator


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", linears.SHAPES)
def test_products_match_fp64_and_are_bit_identical_for_any_number_of_rows(
    team: Team, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    generator = fresh_generator()
    weight = torch.randn(*shape, generator=generator).to(dtype)
    bias = torch.randn(shape[0], generator=generator)
    x = torch.randn(linears.MAX_ROWS, shape[1], generator=generator)
    linears.check_products(team, NativeWeight(team, weight, bias), x, weight, bias)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_products_are_bit_identical_for_any_number_of_threads(
    library: Library, team: Team, dtype: torch.dtype
) -> None:
    generator = fresh_generator()
    native = NativeWeight(team, torch.randn(300, 90, generator=generator).to(dtype))
    linears.check_threads(library, native, torch.randn(40, 90, generator=generator))


def test_accumulate_adds_to_the_output(team: Team) -> None:
    linears.check_accumulation(team, Storage.FP32)


@pytest.mark.parametrize("middle", [1, 16, 50])
def test_gated_weights(team: Team, middle: int) -> None:
    linears.check_gates(team, middle, Storage.BF16)


@pytest.mark.parametrize("storage", [Storage.BF16, Storage.INT8])
@pytest.mark.parametrize("gate", [None, Function.SILU])
def test_stacked_weights_equal_one_weight(team: Team, storage: Storage, gate: Function | None) -> None:
    """The blocks end within panels, and one is empty."""
    generator = fresh_generator()
    whole = torch.randn(90, 70, generator=generator).bfloat16()
    x = torch.randn(5, 70, generator=generator)
    one = NativeWeight(team, whole, None, gate, storage)
    stacked = NativeWeight(team, whole.split((1, 37, 0, 52)), None, gate, storage)
    found, expected = (multiply(team, each, x)[:, : one.width] for each in (stacked, one))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("other", [torch.zeros(2, 7), torch.zeros(2, 8).bfloat16()])
def test_stacked_weights_that_do_not_match_are_refused(team: Team, other: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"same dtype and width \(got torch\.float32 \(3, 8\), torch\."):
        NativeWeight(team, [torch.zeros(3, 8), other])


def test_rows_of_another_width_are_rejected(team: Team) -> None:
    if shared_team() is None:
        pytest.skip("native kernels are switched off")
    weight = LinearWeight(None, None, None, NativeWeight(team, torch.ones(4, 16)))
    x = torch.ones(2, 8)
    for rows in (x, Recorder(team, 2).gather(x, 8)):
        with pytest.raises(ValueError, match="rows have 8 features, but the weight has 16 input features"):
            linear(rows, weight)


def test_memory_of_freed_weights_is_released(team: Team) -> None:
    """Weights are freed in any order. One is larger than the blocks that weights share."""
    gc.collect()  # weights of earlier tests may share a block
    generator = fresh_generator()
    x = torch.randn(2, 500, generator=generator)
    kept = {}
    for index, rows in enumerate((3000, 1, 20_000, 5000, 33)):
        weight = torch.randn(rows, 500, generator=generator)
        kept[index] = NativeWeight(team, weight), x @ weight.T
    del weight
    for index in (2, 0, 4, 1, 3):
        native, expected = kept.pop(index)
        torch.testing.assert_close(multiply(team, native, x), expected, rtol=1e-4, atol=1e-3)
    rss_before = psutil.Process().memory_info().rss
    del native
    assert rss_before - psutil.Process().memory_info().rss > 5e6
