"""y = activation(gate) * up of a gated MLP (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

import torch

from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.elementwise.activate import BY_TORCH, Activation, activated

_BLOCK, _NUM_WARPS = 1024, 4
"""With these each thread loads 16 bytes at a time in 16-bit dtypes."""


def activate_and_mul(gate_up: torch.Tensor, kind: Activation) -> torch.Tensor:
    """Return activation(gate) * up.

    gate_up: [num_tokens, 2 * intermediate], gate in the first half -> [num_tokens, intermediate].
    """
    if not uses_triton(gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return BY_TORCH[kind](gate).mul_(up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    _activate_and_mul_kernel[(rows, cdiv(width, _BLOCK))](
        gate_up, out, width, KIND=kind, BLOCK=_BLOCK, num_warps=_NUM_WARPS
    )
    return out


@jit
def _activate_and_mul_kernel(gate_up_ptr, out_ptr, width, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Compute BLOCK columns of one row in fp32, and round the results once."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    source = gate_up_ptr + row * 2 * width + columns
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=inside, other=0.0).to(tl.float32)
    y = activated(gate, KIND) * up
    tl.store(out_ptr + row * width + columns, y.to(out_ptr.dtype.element_ty), mask=inside)
