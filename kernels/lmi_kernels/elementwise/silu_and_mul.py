"""y = silu(gate) * up, the middle of a gated MLP (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lmi_kernels._triton import cdiv, jit, tl, uses_triton

_BLOCK, _NUM_WARPS = 1024, 4
"""16 bytes a thread and load in 16-bit dtypes."""


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up.

    gate_up: [num_tokens, 2 * intermediate], gate in the first half -> [num_tokens, intermediate].
    """
    if not uses_triton(gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    _silu_and_mul_kernel[(rows, cdiv(width, _BLOCK))](gate_up, out, width, BLOCK=_BLOCK, num_warps=_NUM_WARPS)
    return out


@jit
def sigmoid(x):
    """x in fp32. Of the negative absolute value, so that exp never overflows."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1.0 + small)


@jit
def _silu_and_mul_kernel(gate_up_ptr, out_ptr, width, BLOCK: tl.constexpr):
    """BLOCK columns of one row a program; in fp32, rounded once."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    source = gate_up_ptr + row * 2 * width + columns
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=inside, other=0.0).to(tl.float32)
    y = gate * sigmoid(gate) * up
    tl.store(out_ptr + row * width + columns, y.to(out_ptr.dtype.element_ty), mask=inside)
