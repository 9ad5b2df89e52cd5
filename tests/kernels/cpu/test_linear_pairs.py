"""Native linears with AMX and pairs of bf16, against fp64 with the precision of fp32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.structs import Storage
from lmi_kernels.cpu.team import Team
from lmi_kernels.cpu.weight import NativeWeight
from tests.kernels.cpu import linears
from tests.kernels.cpu.linears import multiply
from tests.support.seeds import fresh_generator


@pytest.fixture
def library(open_library: Callable[[str], Library | None]) -> Library:
    library = open_library("amx")
    if library is None:
        pytest.skip("this processor has no AMX")
    return library


def _pairs(team: Team, weight: torch.Tensor, bias: torch.Tensor | None = None) -> NativeWeight:
    native = NativeWeight(team, weight.bfloat16(), bias)
    assert native.storage == Storage.BF16_PAIRS
    return native


@pytest.mark.parametrize("shape", linears.SHAPES)
def test_products_match_fp64_and_are_bit_identical_for_any_number_of_rows(
    team: Team, shape: tuple[int, int]
) -> None:
    generator = fresh_generator()
    weight = torch.randn(*shape, generator=generator).bfloat16()
    bias = torch.randn(shape[0], generator=generator)
    x = torch.randn(linears.MAX_ROWS, shape[1], generator=generator) * torch.logspace(-20, 20, shape[1])
    linears.check_products(team, _pairs(team, weight, bias), x, weight, bias)


def test_products_use_all_bits_of_each_number(team: Team) -> None:
    generator = fresh_generator()
    x = torch.randn(20, 40, generator=generator) * 10 ** torch.randint(-30, 30, (20, 40), generator=generator)
    assert torch.equal(multiply(team, _pairs(team, torch.eye(40)), x), x)


def test_non_finite_numbers_stay_non_finite(team: Team) -> None:
    generator = fresh_generator()
    x = torch.randn(3, 40, generator=generator)
    x[0, 3], x[1, 39] = torch.nan, torch.inf
    y = multiply(team, _pairs(team, torch.randn(33, 40, generator=generator)), x)
    assert not y[:2].isfinite().any()
    assert y[2].isfinite().all()


@pytest.mark.parametrize("rows", [3, 40])
def test_products_are_bit_identical_for_any_number_of_threads(
    library: Library, team: Team, rows: int
) -> None:
    generator = fresh_generator()
    native = _pairs(team, torch.randn(300, 90, generator=generator))
    linears.check_threads(library, native, torch.randn(rows, 90, generator=generator))


@pytest.mark.parametrize("rows", [5, 21])
def test_accumulate_adds_to_the_output(team: Team, rows: int) -> None:
    linears.check_accumulation(team, Storage.BF16_PAIRS, torch.bfloat16, rows)


def test_gated_weights(team: Team) -> None:
    linears.check_gates(team, 50, Storage.BF16_PAIRS)


def test_embedding_from_a_table_in_pairs(team: Team) -> None:
    table = torch.randn(50, 71, generator=fresh_generator()).bfloat16()
    linears.check_embedding(team, _pairs(team, table), table.float())


@pytest.mark.parametrize(("instructions", "dtype"), [("amx", torch.float32), ("avx2", torch.bfloat16)])
def test_pairs_need_bf16_and_amx(
    open_library: Callable[[str], Library | None], instructions: str, dtype: torch.dtype
) -> None:
    if (library := open_library(instructions)) is None:
        pytest.skip(f"this processor has no {instructions} instructions")
    with pytest.raises(ValueError, match="cannot be stored as BF16_PAIRS"):
        NativeWeight(Team(library, 1), torch.zeros(1, 1, dtype=dtype), storage=Storage.BF16_PAIRS)
