"""rms_norm, rotary_ and the activations: close to double precision, and bit-identical to transformers."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from lmi_kernels import Activation, activate, activate_and_mul, rms_norm, rotary_, scale, softcap
from tests.kernels.references.activate import TORCH_ACTIVATIONS
from tests.support.seeds import fresh_generator

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_tokens", "hidden", "eps"), [(1, 1, 1e-5), (1, 576, 1e-6), (5, 36, 0.1), (33, 577, 1e-5)]
)
@torch.inference_mode()
def test_rms_norm_is_bit_identical_to_transformers(
    num_tokens: int, hidden: int, eps: float, dtype: torch.dtype
) -> None:
    generator = fresh_generator()
    sizes = torch.logspace(-4, 4, num_tokens)[:, None]
    x = (torch.randn(num_tokens, hidden, generator=generator) * sizes).to(dtype)
    before = x.clone()
    norm = LlamaRMSNorm(hidden, eps=eps).to(dtype)
    norm.weight.copy_(torch.randn(hidden, generator=generator))
    y = rms_norm(x, norm.weight, eps)
    assert y.dtype == dtype
    assert torch.equal(y, norm(before))
    assert torch.equal(x, before)
    gemma = Gemma2RMSNorm(hidden, eps=eps).to(dtype)
    gemma.weight.copy_(norm.weight)
    assert torch.equal(rms_norm(x, 1.0 + gemma.weight.float(), eps), gemma(before))


def _angles(generator: torch.Generator, num_tokens: int, head_dim: int) -> torch.Tensor:
    positions = torch.randint(0, 8192, (num_tokens,), generator=generator).float()
    return torch.outer(positions, 1 / 10000 ** (torch.arange(0, head_dim, 2).float() / head_dim))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_tokens", "num_heads", "head_dim"), [(1, 1, 2), (5, 9, 64), (17, 4, 6)])
def test_rotary_is_bit_identical_to_transformers(
    num_tokens: int, num_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    generator = fresh_generator()
    # The first heads of a wider projection, as the attention layer passes them.
    wide = torch.randn(num_tokens, num_heads + 2, head_dim, generator=generator).to(dtype)
    before = wide.clone()
    x = before[:, :num_heads]
    angles = _angles(generator, num_tokens, head_dim)
    sin, cos = torch.cat((angles, angles), -1).sin(), torch.cat((angles, angles), -1).cos()
    signed_sin = torch.cat((-angles.sin(), angles.sin()), -1)
    y = x.clone()
    rotary_(y, cos[:, None], signed_sin[:, None])
    expected, _ = apply_rotary_pos_emb(x.float(), x.float(), cos, sin, unsqueeze_dim=1)
    assert y.dtype == dtype
    assert torch.equal(y, expected.to(dtype))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_rotates_each_pair_by_its_angle(interleaved: bool) -> None:
    generator = fresh_generator()
    # Only the first 8 features of a head are rotated.
    heads = torch.randn(6, 3, 11, generator=generator)
    angles = torch.rand(6, 4, generator=generator) * 6.3
    dim = -1 if interleaved else -2
    y = heads.clone()
    rotary_(
        y[..., :8],
        torch.stack((angles, angles), dim).flatten(1).cos()[:, None],
        torch.stack((-angles.sin(), angles.sin()), dim).flatten(1)[:, None],
        interleaved,
    )
    x = heads[..., :8].double().unflatten(-1, (4, 2) if interleaved else (2, 4))
    # A rotation is one product of complex numbers.
    rotated = torch.complex(*x.unbind(dim)) * torch.polar(
        torch.ones_like(angles).double(), angles.double()
    ).unsqueeze(1)
    expected = torch.stack((rotated.real, rotated.imag), dim).flatten(-2)
    torch.testing.assert_close(y[..., :8].double(), expected, rtol=0, atol=2e-6)
    assert torch.equal(y[..., 8:], heads[..., 8:])


def _assert_near(y: torch.Tensor, expected: torch.Tensor, size: torch.Tensor) -> None:
    """size: the result without the factor 1 + erf or 1 + tanh, which cancels near -1.

    torch's own erf errs by up to 3 units in the last place of 1 around x = -3, on every instruction set.
    """
    error = (y.double() - expected).abs() / torch.finfo(y.dtype).eps
    assert bool((error <= 4 * expected.abs() + 4 * size.abs()).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", list(TORCH_ACTIVATIONS))
def test_activations_are_accurate_and_bit_identical_to_transformers(
    kind: Activation, dtype: torch.dtype
) -> None:
    x = (torch.randn(3, 577, generator=fresh_generator()) * 3).to(dtype)
    before = x.clone()
    y = activate(x, kind)
    assert y.dtype == dtype
    assert torch.equal(y, ACT2FN["gelu_pytorch_tanh" if kind == "gelu_tanh" else kind](x))
    _assert_near(y, TORCH_ACTIVATIONS[kind](x.double()), x.double())
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", list(TORCH_ACTIVATIONS))
def test_activate_and_mul_matches_double_precision(kind: Activation, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(40, 2 * 77, generator=fresh_generator()) * 4).to(dtype)
    before = gate_up.clone()
    y = activate_and_mul(gate_up, kind)
    gate, up = before.double().chunk(2, -1)
    assert y.shape == (40, 77)
    assert y.dtype == dtype
    _assert_near(y, TORCH_ACTIVATIONS[kind](gate) * up, gate * up)
    assert torch.equal(gate_up, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_and_softcap_are_bit_identical_to_transformers(dtype: torch.dtype) -> None:
    x = (torch.randn(3, 577, generator=fresh_generator()) * 40).to(dtype)
    assert torch.equal(scale(x, 24.0), x * 24.0)
    assert torch.equal(softcap(x, 30.0), torch.tanh(x / 30.0) * 30.0)
