"""y = gelu(gate) * up, the middle of a gated MLP (Shazeer 2020, arXiv:2002.05202). GELU is by erf, or by its
approximation with tanh, x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) (arXiv:1606.08415, section 2)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.elementwise.gelu import gelu_erf
from lmi_kernels.elementwise.silu_and_mul import sigmoid

Approximate = Literal["none", "tanh"]
"""torch's names: `none` is by erf."""
_BLOCK, _NUM_WARPS = 1024, 4
"""16 bytes a thread and load in 16-bit dtypes."""


def gelu_and_mul(gate_up: torch.Tensor, approximate: Approximate = "none") -> torch.Tensor:
    """Return gelu(gate) * up.

    gate_up: [num_tokens, 2 * intermediate], gate in the first half -> [num_tokens, intermediate].
    """
    if not uses_triton(gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate=approximate).mul_(up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    _gelu_and_mul_kernel[(rows, cdiv(width, _BLOCK))](
        gate_up, out, width, BLOCK=_BLOCK, TANH=approximate == "tanh", num_warps=_NUM_WARPS
    )
    return out


@jit
def _gelu_tanh(x):
    """x in fp32. (1 + tanh(z)) / 2 is sigmoid(2 z), which does not cancel where tanh is near -1."""
    return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@jit
def _gelu_and_mul_kernel(gate_up_ptr, out_ptr, width, BLOCK: tl.constexpr, TANH: tl.constexpr):
    """BLOCK columns of one row a program; in fp32, rounded once."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    source = gate_up_ptr + row * 2 * width + columns
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=inside, other=0.0).to(tl.float32)
    activated = _gelu_tanh(gate) if TANH else gelu_erf(gate)
    tl.store(out_ptr + row * width + columns, (activated * up).to(out_ptr.dtype.element_ty), mask=inside)
