"""Native linears against fp64. The result of a row depends only on the row, bit by bit."""

from __future__ import annotations

import psutil
import pytest
import torch

from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.team import Team
from lmi_kernels.cpu.weight import NativeWeight
from tests.kernels.cpu.linears import check_accumulation, check_gates, multiply
from tests.support.randomness import random_seed

_SHAPES = ((1, 1), (31, 7), (33, 5), (64, 130), (100, 33), (200, 576))
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 27, 28, 29, 32, 64, 97)


def _within(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> bool:
    expected = x.double() @ weight.double().T + bias.double()
    size = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    return bool(((found.double() - expected).abs() <= 3e-6 * size).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", _SHAPES)
def test_products_match_fp64_and_are_bit_identical_for_any_number_of_rows(
    library: Library, team: Team, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(random_seed())
    weight = torch.randn(*shape, generator=generator).to(dtype)
    bias = torch.randn(shape[0], generator=generator)
    native = NativeWeight(library, weight, bias)
    x = torch.randn(max(_ROWS), shape[1], generator=generator)
    full = torch.full((len(x), shape[0]), torch.nan)
    multiply(team, native, x, full)
    assert _within(full, x, weight, bias)
    for rows in _ROWS:
        part = torch.full((rows, shape[0]), torch.nan)
        multiply(team, native, x[:rows], part)
        assert torch.equal(part, full[:rows]), rows


def test_products_are_bit_identical_for_any_number_of_threads(library: Library) -> None:
    generator = torch.Generator().manual_seed(random_seed())
    native = NativeWeight(library, torch.randn(300, 90, generator=generator))
    x = torch.randn(40, 90, generator=generator)
    found = []
    for count in (1, 2, 5):
        found.append(torch.empty(40, 300))
        multiply(Team(library, count), native, x, found[-1])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_accumulate_adds_to_the_output(library: Library, team: Team) -> None:
    check_accumulation(library, team)


@pytest.mark.parametrize("middle", [1, 16, 50])
def test_gated_weights(library: Library, team: Team, middle: int) -> None:
    check_gates(library, team, middle, lambda x, weight, bias: x.double() @ weight.double().T + bias)


def test_memory_of_freed_weights_is_released(library: Library, team: Team) -> None:
    """Weights are freed in any order. One is larger than the blocks that weights share."""
    generator = torch.Generator().manual_seed(random_seed())
    x = torch.randn(2, 500, generator=generator)
    kept = {}
    for index, rows in enumerate((3000, 1, 20_000, 5000, 33)):
        weight = torch.randn(rows, 500, generator=generator)
        expected, found = x @ weight.T, torch.full((2, rows), torch.nan)
        kept[index] = (NativeWeight(library, weight), expected, found)
    del weight
    for index in (2, 0, 4, 1, 3):
        native, expected, found = kept.pop(index)
        multiply(team, native, x, found)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    rss_before = psutil.Process().memory_info().rss
    del native
    assert rss_before - psutil.Process().memory_info().rss > 5e6
