"""y = gelu(gate) * up: the gated MLP's middle with GELU (Shazeer 2020, arXiv:2002.05202), by erf or by its
approximation with tanh, x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) (arXiv:1606.08415, section 2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F

from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.checks import ROUNDING, Inputs, OpCheck, Results
from lmi_kernels.gelu import gelu_erf, gelu_reference
from lmi_kernels.silu_and_mul import sigmoid

Approximate = Literal["none", "tanh"]
"""torch's names: by erf, or by tanh."""


def gelu_and_mul(gate_up: torch.Tensor, approximate: Approximate = "none") -> torch.Tensor:
    """gate_up: [num_tokens, 2 * intermediate], gate in the first half -> [num_tokens, intermediate]."""
    if uses_triton(gate_up):
        return gelu_and_mul_triton(gate_up, approximate)[0]
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate=approximate).mul_(up)


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


_BLOCK, _NUM_WARPS = 1024, 4
"""16 bytes a thread and load in 16-bit dtypes."""


def gelu_and_mul_triton(gate_up: torch.Tensor, approximate: Approximate) -> Results:
    """As `gelu_and_mul`; returns one tensor."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    grid = (rows, cdiv(width, _BLOCK))
    _gelu_and_mul_kernel[grid](
        gate_up, out, width, BLOCK=_BLOCK, TANH=approximate == "tanh", num_warps=_NUM_WARPS
    )
    return (out,)


def gelu_and_mul_reference(gate_up: torch.Tensor, approximate: Approximate) -> Results:
    """fp64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    if approximate == "none":
        return (gelu_reference(gate)[0] * up,)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return (gate / 2 * (1 + torch.tanh(inner)) * up,)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, width in ((1, 1), (3, 7), (2, 1025)):
        for approximate in ("none", "tanh"):
            gate_up = torch.randn(rows, 2 * width, generator=generator) * 4
            yield {"gate_up": gate_up.to(dtype), "approximate": approximate}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The width is no constant of the kernel: this one stands for all multiples of 16.
    for approximate in ("none", "tanh"):
        yield {
            "gate_up": torch.empty(32, 2 * 14336, dtype=dtype, device="meta"),
            "approximate": approximate,
        }


CHECKS = (
    OpCheck("gelu_and_mul", gelu_and_mul_triton, gelu_and_mul_reference, _examples, _production, ROUNDING),
)
