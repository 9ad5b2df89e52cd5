"""Reference for `rms_norm` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels.elementwise.rms_norm import add_rms_norm, rms_norm
from tests.kernels.references.check import Inputs, OpCheck, Results, with_residual


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Results:
    x64 = x.double()
    return (x64 * (x64.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double(),)


def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> Results:
    """Compute in fp64, except that the sum is rounded to x's dtype, in which it is stored."""
    total = (x.double() + residual.double()).to(x.dtype)
    return (*rms_norm_reference(total, weight, eps), total.double())


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, hidden, weight_dtype in (
        (1, 1, dtype),
        (3, 36, dtype),
        (5, 576, dtype),
        (2, 1000, dtype),
        (4, 300, torch.float32),  # as in Gemma
    ):
        x = torch.randn(rows, hidden, generator=generator).to(dtype)
        weight = torch.randn(hidden, generator=generator).to(weight_dtype)
        yield {"x": x, "weight": weight, "eps": 1e-5}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    for hidden in (576, 1024, 4096, 8192):
        x = torch.empty(32, hidden, dtype=dtype, device="meta")
        yield {"x": x, "weight": x[0], "eps": 1e-5}
        yield {"x": x, "weight": x[0].float(), "eps": 1e-5}


CHECKS = (
    OpCheck("rms_norm", rms_norm, rms_norm_reference, _examples, _production),
    OpCheck(
        "add_rms_norm",
        add_rms_norm,
        add_rms_norm_reference,
        lambda generator, dtype: with_residual(_examples(generator, dtype), generator),
        lambda dtype: with_residual(_production(dtype)),
    ),
)
