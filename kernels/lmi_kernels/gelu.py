"""y = x * Phi(x) = x / 2 * (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel 2016, arXiv:1606.08415): Falcon's MLP."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.checks import ROUNDING, Inputs, OpCheck, Results
from lmi_kernels.cpu.recorder import Rows


def gelu(x: torch.Tensor) -> torch.Tensor:
    """x: any shape, contiguous -> the same shape and dtype."""
    if isinstance(x, Rows):
        return x.recorder.gelu(x)
    if uses_triton(x):
        return gelu_triton(x)[0]
    return F.gelu(x)


@jit
def gelu_erf(x):
    """x in fp32."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@jit
def _gelu_kernel(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """BLOCK numbers a program; in fp32, rounded once."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    x = tl.load(x_ptr + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, gelu_erf(x).to(out_ptr.dtype.element_ty), mask=inside)


_BLOCK, _NUM_WARPS = 1024, 4
"""16 bytes a thread and load in 16-bit dtypes."""


def gelu_triton(x: torch.Tensor) -> Results:
    """As `gelu`; returns one tensor."""
    out = torch.empty_like(x)
    _gelu_kernel[(cdiv(x.numel(), _BLOCK),)](x, out, x.numel(), BLOCK=_BLOCK, num_warps=_NUM_WARPS)
    return (out,)


def gelu_reference(x: torch.Tensor) -> Results:
    """fp64."""
    wide = x.double()
    return (wide / 2 * (1 + torch.erf(wide / math.sqrt(2))),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for shape in ((1, 1), (3, 7), (5, 1025)):
        yield {"x": (torch.randn(shape, generator=generator) * 3).to(dtype)}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The count is no constant of the kernel: this one stands for all multiples of 16.
    yield {"x": torch.empty(32, 4 * 8192, dtype=dtype, device="meta")}


CHECKS = (OpCheck("gelu", gelu_triton, gelu_reference, _examples, _production, ROUNDING),)
