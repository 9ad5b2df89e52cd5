"""Elementwise activations:

gelu        x Phi(x), by erf (Hendrycks and Gimpel 2016, arXiv:1606.08415)
gelu_tanh   x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), approximation of gelu (section 2 of the same paper)
relu        max(x, 0)
silu        x sigmoid(x)
quick_gelu  x sigmoid(1.702 x)
relu2       max(x, 0)^2 (So et al. 2021, arXiv:2109.08668)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F

from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.cpu.recorder import Rows
from lmi_kernels.cpu.structs import Function

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "quick_gelu", "relu2"]
_BLOCK, _NUM_WARPS = 1024, 4
"""With these each thread loads 16 bytes at a time in 16-bit dtypes."""

BY_TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu2": lambda x: F.relu(x).square(),
}


def activate(x: torch.Tensor, kind: Activation) -> torch.Tensor:
    """Apply an activation. x: [num_rows, width], contiguous -> the same shape and dtype."""
    if isinstance(x, Rows):
        return x.recorder.elementwise(x, Function[kind.upper()])
    if not uses_triton(x):
        return BY_TORCH[kind](x)
    out = torch.empty_like(x)
    _activate_kernel[(cdiv(x.numel(), _BLOCK),)](
        x, out, x.numel(), KIND=kind, BLOCK=_BLOCK, num_warps=_NUM_WARPS
    )
    return out


@jit
def _sigmoid(x):
    """Return the sigmoid of x, fp32. It is computed from exp(-|x|), which never overflows."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1.0 + small)


@jit
def activated(x, KIND: tl.constexpr):
    """Return the activation of x, fp32. KIND: an `Activation`."""
    if KIND == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        # (1 + tanh(z)) / 2 = sigmoid(2 z). The sigmoid has no cancellation where tanh is near -1.
        y = x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif KIND == "silu":
        y = x * _sigmoid(x)
    elif KIND == "quick_gelu":
        y = x * _sigmoid(1.702 * x)
    else:
        # Not `tl.maximum`, which turns NaN into 0.
        y = tl.where(x < 0, 0.0, x)
        if KIND == "relu2":
            y = y * y
    return y


@jit
def _activate_kernel(x_ptr, out_ptr, count, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Compute BLOCK numbers in fp32, and round the results once."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    x = tl.load(x_ptr + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, activated(x, KIND).to(out_ptr.dtype.element_ty), mask=inside)
