from __future__ import annotations

import pytest
import torch

from lmi_kernels import Activation, LinearWeight, gated_linear, linear, pack
from tests.kernels.references.activate import TORCH_ACTIVATIONS
from tests.support.seeds import fresh_generator

pytestmark = pytest.mark.usefixtures("torch_kernels")


def _exact_weight(generator: torch.Generator, out_features: int, in_features: int) -> torch.Tensor:
    return (torch.randn(out_features, in_features, generator=generator) * 0.05).half().float()


def _bound(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return a generous bound for the error of an fp32 sum: depth * eps * sum of magnitudes."""
    depth = max(8.0, w.shape[1] ** 0.5)
    return depth * torch.finfo(torch.float32).eps * (x.double().abs() @ w.double().abs().T) + 1e-30


@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (37, 5), (192, 576)])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("exact", [True, False])
def test_linear_is_accurate_to_fp32(
    out_features: int, in_features: int, with_bias: bool, exact: bool
) -> None:
    generator = fresh_generator()
    w = _exact_weight(generator, out_features, in_features)
    if not exact:
        w[-1, -1] = 1 / 3
    bias = torch.randn(out_features, generator=generator) if with_bias else None
    for num_rows in (1, 2, 3, 7, 33):
        x = torch.randn(num_rows, in_features, generator=generator)
        y = linear(x, pack(w, bias))
        expected = x.double() @ w.double().T
        bound = _bound(x, w)
        if bias is not None:
            expected += bias.double()
            bound += torch.finfo(torch.float32).eps * (expected.abs() + bias.abs())
        assert y.dtype == torch.float32
        assert y.shape == (num_rows, out_features)
        assert bool(((y.double() - expected).abs() <= bound).all())


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("exact", [True, False])
def test_linear_adds_to_a_tensor_in_place(with_bias: bool, exact: bool) -> None:
    generator = fresh_generator()
    w = _exact_weight(generator, 37, 5) * (1 if exact else 1 / 3)
    weight = pack(w, torch.randn(37, generator=generator) if with_bias else None)
    x, total = torch.randn(3, 5, generator=generator), torch.randn(3, 37, generator=generator)
    expected = total + linear(x, weight)
    assert linear(x, weight, add_to=total) is total
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_fp16_represents_exactly_are_packed(dtype: torch.dtype) -> None:
    # Zeros of both signs, fp16's subnormals and extremes. bf16 can represent all of them.
    values = torch.tensor([0.0, -0.0, 0.5, -1.25, 2**-14, 2**-24, -(2**-20), 3 * 2**-24, 32768.0, 63488.0])
    weight = pack(values.view(2, 5).to(dtype))
    assert weight.packed is not None
    assert weight.dense is None
    # The product with the identity returns every weight: packing loses nothing.
    assert torch.equal(linear(torch.eye(5).repeat(2, 1), weight)[:5], values.view(2, 5).T)


@pytest.mark.parametrize("value", [1 / 3, 65536.0, -1e30, 2.0**-25, 1 + 2.0**-12, float("nan")])
def test_weights_that_fp16_would_change_stay_dense(value: float) -> None:
    w = torch.ones(3, 4)
    w[1, 2] = value
    weight = pack(w)
    assert weight.packed is None
    assert weight.dense is not None
    assert torch.equal(weight.dense, w) or value != value


def test_one_inexact_weight_of_a_tall_matrix_is_found() -> None:
    # The check reads the rows in blocks. The inexact weight is in the last row of the second block.
    w = torch.zeros(8192 + 7, 2)
    assert pack(w).packed is not None
    w[-1, 1] = 0.1
    assert pack(w).packed is None


def test_dense_products_widen_low_precision_weights() -> None:
    generator = fresh_generator()
    w = torch.randn(6, 8, generator=generator).bfloat16()
    w[0, 0] = 2.0**-40  # exact in bf16, not in fp16
    x = torch.randn(3, 8, generator=generator)
    weight = pack(w, torch.ones(6, dtype=torch.bfloat16))
    assert weight.packed is None
    y = linear(x, weight)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, (x.double() @ w.double().T + 1).float(), rtol=0, atol=1e-5)


def test_an_empty_batch_gives_an_empty_result() -> None:
    assert linear(torch.empty(0, 4), pack(torch.ones(3, 4))).shape == (0, 3)


@pytest.mark.parametrize("kind", list(TORCH_ACTIVATIONS))
@pytest.mark.parametrize("exact", [True, False])
def test_gated_linear_applies_the_activation_of_its_weight(kind: Activation, exact: bool) -> None:
    generator = fresh_generator()
    w = _exact_weight(generator, 2 * 21, 33) * (1 if exact else 1 / 3)
    x = torch.randn(5, 33, generator=generator)
    gate, up = (x.double() @ w.double().T).chunk(2, dim=-1)
    y = gated_linear(x, pack(w, gated=kind))
    torch.testing.assert_close(y.double(), TORCH_ACTIVATIONS[kind](gate) * up, rtol=1e-5, atol=1e-6)


def test_missing_gates_are_rejected() -> None:
    with pytest.raises(ValueError, match="packed as gated"):
        gated_linear(torch.ones(1, 2), pack(torch.ones(2, 2)))


def test_an_empty_weight_is_rejected() -> None:
    with pytest.raises(ValueError, match="packed or a dense"):
        linear(torch.ones(1, 1), LinearWeight(None, None, None))
