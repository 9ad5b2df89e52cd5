"""Native linears against fp64. The result of a row depends only on the row, bit by bit."""

from __future__ import annotations

import psutil
import pytest
import torch

from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.structs import Storage
from lmi_kernels.cpu.team import Team
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


def test_products_are_bit_identical_for_any_number_of_threads(library: Library, team: Team) -> None:
    generator = fresh_generator()
    native = NativeWeight(team, torch.randn(300, 90, generator=generator))
    linears.check_threads(library, native, torch.randn(40, 90, generator=generator))


def test_accumulate_adds_to_the_output(team: Team) -> None:
    linears.check_accumulation(team, Storage.FP32)


@pytest.mark.parametrize("middle", [1, 16, 50])
def test_gated_weights(team: Team, middle: int) -> None:
    linears.check_gates(team, middle, Storage.BF16)


def test_memory_of_freed_weights_is_released(team: Team) -> None:
    """Weights are freed in any order. One is larger than the blocks that weights share."""
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
