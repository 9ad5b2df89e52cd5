"""y = silu(gate) * up: the gated MLP's middle (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.checks import ROUNDING, Inputs, OpCheck, Results


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up: [num_tokens, 2 * intermediate], gate in the first half -> [num_tokens, intermediate]."""
    if uses_triton(gate_up):
        return silu_and_mul_triton(gate_up)[0]
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


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


_BLOCK, _NUM_WARPS = 1024, 4
"""16 bytes a thread and load in 16-bit dtypes."""


def silu_and_mul_triton(gate_up: torch.Tensor) -> Results:
    """As `silu_and_mul`; returns one tensor."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    grid = (rows, cdiv(width, _BLOCK))
    _silu_and_mul_kernel[grid](gate_up, out, width, BLOCK=_BLOCK, num_warps=_NUM_WARPS)
    return (out,)


def silu_and_mul_reference(gate_up: torch.Tensor) -> Results:
    """fp64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up,)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, width in ((1, 1), (3, 7), (2, 1025), (5, 1536)):
        yield {"gate_up": (torch.randn(rows, 2 * width, generator=generator) * 4).to(dtype)}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The width is no constant of the kernel: this one stands for all multiples of 16.
    yield {"gate_up": torch.empty(32, 2 * 14336, dtype=dtype, device="meta")}


CHECKS = (
    OpCheck("silu_and_mul", silu_and_mul_triton, silu_and_mul_reference, _examples, _production, ROUNDING),
)
