"""GELU, as in Falcon's MLP: y = x * Phi(x) = x / 2 * (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel 2016,
arXiv:1606.08415)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.cpu.recorder import Rows

_BLOCK, _NUM_WARPS = 1024, 4
"""16 bytes a thread and load in 16-bit dtypes."""


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return GELU of x. x: any shape, contiguous -> the same shape and dtype."""
    if isinstance(x, Rows):
        return x.recorder.gelu(x)
    if not uses_triton(x):
        return F.gelu(x)
    out = torch.empty_like(x)
    _gelu_kernel[(cdiv(x.numel(), _BLOCK),)](x, out, x.numel(), BLOCK=_BLOCK, num_warps=_NUM_WARPS)
    return out


@jit
def gelu_erf(x):
    """x in fp32."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@jit
def _gelu_kernel(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """Compute BLOCK numbers in fp32, rounded once."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    x = tl.load(x_ptr + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, gelu_erf(x).to(out_ptr.dtype.element_ty), mask=inside)
