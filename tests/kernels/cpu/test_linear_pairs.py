"""Native linears with AMX and pairs of bf16, against fp64 with the precision of fp32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.structs import Embed, Epilogue, Step, Storage
from lmi_kernels.cpu.team import Program, Team
from lmi_kernels.cpu.weight import NativeWeight
from tests.kernels.cpu.linears import check_gates, multiply
from tests.support.randomness import random_seed

_SHAPES = ((1, 1), (31, 7), (33, 5), (64, 130), (100, 33), (200, 576))
_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 15, 16, 17, 27, 28, 29, 31, 32, 33, 48, 49, 64, 97)


@pytest.fixture
def library(open_library: Callable[[str], Library | None]) -> Library:
    library = open_library("amx")
    if library is None:
        pytest.skip("this processor has no AMX")
    return library


def _pairs(library: Library, weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeWeight:
    return NativeWeight(library, weight.bfloat16(), bias, storage=Storage.BF16_PAIRS)


@pytest.mark.parametrize("shape", _SHAPES)
def test_products_match_fp64_and_are_bit_identical_for_any_number_of_rows(
    library: Library, team: Team, shape: tuple[int, int]
) -> None:
    generator = torch.Generator().manual_seed(random_seed())
    weight = torch.randn(*shape, generator=generator).bfloat16()
    bias = torch.randn(shape[0], generator=generator)
    native = _pairs(library, weight, bias)
    x = torch.randn(max(_ROWS), shape[1], generator=generator) * torch.logspace(-20, 20, shape[1])
    full = torch.full((len(x), shape[0]), torch.nan)
    multiply(team, native, x, full)
    expected = x.double() @ weight.double().T + bias.double()
    size = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    assert ((full.double() - expected).abs() <= 3e-6 * size).all()
    for rows in _ROWS:
        part = torch.full((rows, shape[0]), torch.nan)
        multiply(team, native, x[:rows], part)
        assert torch.equal(part, full[:rows]), rows


def test_products_use_all_bits_of_each_number(library: Library, team: Team) -> None:
    generator = torch.Generator().manual_seed(random_seed())
    x = torch.randn(20, 40, generator=generator) * 10 ** torch.randint(-30, 30, (20, 40), generator=generator)
    y = torch.full((20, 40), torch.nan)
    multiply(team, _pairs(library, torch.eye(40)), x, y)
    assert torch.equal(y, x)


def test_non_finite_numbers_stay_non_finite(library: Library, team: Team) -> None:
    generator = torch.Generator().manual_seed(random_seed())
    x = torch.randn(3, 40, generator=generator)
    x[0, 3], x[1, 39] = torch.nan, torch.inf
    y = torch.zeros(3, 33)
    multiply(team, _pairs(library, torch.randn(33, 40, generator=generator)), x, y)
    assert not y[:2].isfinite().any()
    assert y[2].isfinite().all()


def test_products_are_bit_identical_for_any_number_of_threads(library: Library) -> None:
    generator = torch.Generator().manual_seed(random_seed())
    native = _pairs(library, torch.randn(300, 90, generator=generator))
    for rows in (3, 40):
        x = torch.randn(rows, 90, generator=generator)
        found = [torch.empty(rows, 300) for _ in range(3)]
        for y, count in zip(found, (1, 2, 5), strict=True):
            multiply(Team(library, count), native, x, y)
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("rows", [5, 21])
def test_accumulate_adds_to_the_output(library: Library, team: Team, rows: int) -> None:
    generator = torch.Generator().manual_seed(random_seed())
    native = _pairs(library, torch.randn(70, 48, generator=generator))
    x, before = torch.randn(rows, 48, generator=generator), torch.randn(rows, 70, generator=generator)
    product, y = torch.empty(rows, 70), before.clone()
    multiply(team, native, x, product)
    multiply(team, native, x, y, Epilogue.ACCUMULATE)
    assert torch.equal(y, before + product)


def test_gated_weights(library: Library, team: Team) -> None:
    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return x.double() @ weight.double().T + bias.double()

    check_gates(library, team, 50, product, Storage.BF16_PAIRS)


def test_embedding_from_a_table_in_pairs(library: Library, team: Team) -> None:
    generator = torch.Generator().manual_seed(random_seed())
    table = torch.randn(50, 71, generator=generator).bfloat16()
    ids = torch.tensor([0, 49, 17, 33, 31, 32, 50], dtype=torch.int32)
    y = torch.full((len(ids), 71), torch.nan)
    native = _pairs(library, table)
    embed = Embed(table=native.handle, y=y.data_ptr(), y_stride=71, first_id=0)
    team.run(Program([embed]), Step(num_rows=len(ids), ids=ids.data_ptr()))
    assert torch.equal(y[:6], table[ids[:6].long()].float())
    assert (y[6] == 0).all()


@pytest.mark.parametrize(("instructions", "dtype"), [("amx", torch.float32), ("avx2", torch.bfloat16)])
def test_pairs_need_bf16_and_amx(
    open_library: Callable[[str], Library | None], instructions: str, dtype: torch.dtype
) -> None:
    if (library := open_library(instructions)) is None:
        pytest.skip(f"this processor has no {instructions} instructions")
    with pytest.raises(ValueError, match="cannot be stored as BF16_PAIRS"):
        NativeWeight(library, torch.zeros(1, 1, dtype=dtype), storage=Storage.BF16_PAIRS)
