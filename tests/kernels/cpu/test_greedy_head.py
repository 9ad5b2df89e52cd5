"""The native greedy head gives each row's largest logit, bit-identical to computing all of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import lmi_kernels
from lmi_kernels.cpu import LogitBounds
from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.structs import Storage
from lmi_kernels.cpu.team import Team
from lmi_kernels.cpu.weight import NativeWeight
from lmi_kernels.linear.linear import LinearWeight
from tests.kernels.cpu import linears
from tests.kernels.cpu.heads import FIRST_ID, Head, best
from tests.support.seeds import fresh_generator

_SHAPES = ((1, 1), (31, 7), (33, 65), (100, 33), (1000, 130), (3000, 576))
"""Vocabulary and hidden size."""
_NUM_ROWS = (1, 2, 3, 5, 14, 15, 16, 17, 33, 70)
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(autouse=True, params=[math.inf, 0.0], ids=["bounds", "all"])
def _max_exact_share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute only what bounds leave, however much that is, or always all products."""
    monkeypatch.setattr(LogitBounds, "max_exact_share", request.param)


def _check(head: Head, x: torch.Tensor) -> None:
    torch.testing.assert_close(head.find(x), best(head.logits(x)), rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("dtype", _DTYPES)
def test_the_largest_logit_is_that_of_all_logits(
    team: Team, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    generator = fresh_generator()
    head = Head(team, torch.randn(*shape, generator=generator).to(dtype))
    for num_rows in _NUM_ROWS:
        # Outliers make large quantization errors.
        x = torch.randn(num_rows, shape[1], generator=generator)
        x *= 10 ** (2 * torch.rand(num_rows, shape[1], generator=generator))
        _check(head, x)


@pytest.mark.parametrize("size", [1e-36, 1e-31, 1e-20, 1e-3, 1e10, 1e16, 1e30])
def test_rows_of_any_size(team: Team, size: float) -> None:
    generator = fresh_generator()
    head = Head(team, torch.randn(500, 90, generator=generator))
    _check(head, torch.randn(20, 90, generator=generator) * size)


def test_close_logits(team: Team) -> None:
    generator = fresh_generator()
    row = torch.randn(200, generator=generator)
    near = row + torch.randn(1500, 200, generator=generator) * 1e-6
    head = Head(team, near)
    _check(head, torch.randn(40, 200, generator=generator))
    _check(head, row[None])


def test_of_equal_logits_the_lowest_id_counts(team: Team) -> None:
    generator = fresh_generator()
    table = torch.randn(5, 64, generator=generator)
    copies = torch.randint(5, (4000,), generator=generator)
    head = Head(team, table[copies])
    x = torch.randn(33, 64, generator=generator)
    _check(head, x)
    assert (head.find(torch.zeros(2, 64))[:, 1] == FIRST_ID).all()


@pytest.mark.parametrize("cap", [0.5, 5.0, 30.0])
def test_soft_caps_may_make_logits_equal(team: Team, cap: float) -> None:
    generator = fresh_generator()
    head = Head(team, torch.randn(1000, 64, generator=generator), softcap=cap)
    for size in (0.1, 1.0, 10.0):
        _check(head, torch.randn(30, 64, generator=generator) * size)


def test_rows_that_are_not_finite_have_no_token(team: Team) -> None:
    generator = fresh_generator()
    head = Head(team, torch.randn(100, 40, generator=generator))
    x = torch.randn(5, 40, generator=generator)
    x[0, 3], x[1, 39], x[2, 0], x[3] = torch.nan, torch.inf, -torch.inf, 1e38
    _check(head, x)
    assert head.find(x)[:, 0].isnan().tolist() == [True, True, True, True, False]


def test_a_row_does_not_depend_on_others(team: Team) -> None:
    generator = fresh_generator()
    head = Head(team, torch.randn(2000, 96, generator=generator).bfloat16())
    x = torch.randn(70, 96, generator=generator)
    together = head.find(x)
    for first in (0, 13, 69):
        assert torch.equal(head.find(x[first:]), together[first:])


@pytest.mark.parametrize("instructions", ["avx512_vnni", "amx"])
def test_other_int8_products(instructions: str, open_library: Callable[[str], Library | None]) -> None:
    library = open_library(instructions)
    if library is None:
        pytest.skip(f"this processor has no {instructions} instructions")
    generator = fresh_generator()
    for count in (1, 2):
        matrix = torch.randn(3000, 130, generator=generator).bfloat16()
        head = Head(Team(library, count), matrix)
        for num_rows in _NUM_ROWS:
            _check(head, torch.randn(num_rows, 130, generator=generator))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e10])
def test_norms_are_upper_bounds(team: Team, size: float, dtype: torch.dtype) -> None:
    weight = (torch.randn(300, 128, generator=fresh_generator()) * size).to(dtype)
    norms = torch.full((2, 300), torch.nan)
    native = NativeWeight(team, weight, storage=Storage.INT8, norms=norms)
    # The rotated rows of the unit matrix are quantized without loss.
    restored = linears.multiply(team, native, torch.eye(128)).T.double()
    assert (norms[0].double() >= weight.double().norm(dim=1)).all()
    assert (norms[0].double() >= restored.norm(dim=1)).all()
    error = (weight.double() - restored).norm(dim=1)
    assert (norms[1].double() >= error).all()
    assert (norms[1].double() <= 1.01 * error + 2e-5 * weight.double().norm(dim=1)).all()


@pytest.mark.parametrize("size", [1e-44, 1e-39, 1e-37, 1e-31, 1e-29])
def test_tiny_weights_are_bounded(team: Team, size: float) -> None:
    generator = fresh_generator()
    weight = torch.randn(200, 90, generator=generator)
    weight[3:7] *= size
    weight[5] = 0
    norms = torch.empty(2, 200)
    native = NativeWeight(team, weight, storage=Storage.INT8, norms=norms)
    error = weight - linears.multiply(team, native, torch.eye(90)).T
    assert (norms.double() >= torch.stack((weight, error)).double().norm(dim=2)).all()
    head = Head(team, weight)
    assert head.bounds.is_usable
    x = torch.randn(20, 90, generator=generator)
    _check(head, x)
    # Only tiny logits are above zero.
    weight[:] = 0
    weight[101] = x[7] * size
    _check(Head(team, weight), x * 1e13)


def test_weights_that_are_not_finite_are_not_bounded(team: Team) -> None:
    for value in (torch.nan, torch.inf, 1e20):
        matrix = torch.randn(40, 10, generator=fresh_generator())
        matrix[33, 3] = value
        assert not LogitBounds(team, matrix).is_usable


def test_the_reference_gives_the_same(team: Team) -> None:
    generator = fresh_generator()
    matrix, x = torch.randn(90, 30, generator=generator), torch.randn(7, 30, generator=generator)
    x[2, 2] = torch.nan
    dense = LinearWeight(None, matrix, None)
    found = lmi_kernels.greedy_head(x, dense, None, FIRST_ID, softcap=20.0)
    native = Head(team, matrix, softcap=20.0).find(x)
    assert torch.equal(found[:, 1], native[:, 1])
    torch.testing.assert_close(found, native, equal_nan=True)
