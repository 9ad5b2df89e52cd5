"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, arXiv:1910.07467), accumulated in fp32,
optionally fused with the residual addition.

As in transformers, x is rounded to the dtype of the weights before the product: with Llama's weights, in x's dtype,
the result is rounded twice, and with Gemma's, in fp32, once.
"""

from __future__ import annotations

import torch

from lmi_kernels._triton import jit, next_power_of_2, tl, uses_triton
from lmi_kernels.cpu.recorder import Rows
from lmi_kernels.elementwise.norm_rows import load_row


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalize rows. x: [num_tokens, hidden], weight: [hidden], in x's dtype or fp32 -> like x."""
    if isinstance(x, Rows):
        return x.recorder.rms_norm(x, weight, eps)
    if not uses_triton(x):
        return _rms_norm_torch(x, weight, eps)
    return _launch(x, None, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a branch's output to the residual stream, and normalize the sum.

    Args:
        x: [num_tokens, hidden], the branch's output. May be overwritten.
        residual: [num_tokens, hidden], the residual stream. May be overwritten by the sum.
        weight: [hidden], in x's dtype or fp32.

    Returns: the normalized sum and the sum, each [num_tokens, hidden] in x's dtype.
    """
    if isinstance(x, Rows):
        total = x + residual
        return rms_norm(total, weight, eps), total
    if not uses_triton(x):
        residual = residual + x
        return _rms_norm_torch(residual, weight, eps), residual
    return _launch(x, residual, weight, eps), residual


def _rms_norm_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Compute in the order of operations of transformers, so that results are bit-equal."""
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True).add_(eps))
    return (weight * (x32 * scale).to(weight.dtype)).to(x.dtype)


@jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    eps,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
):
    """Normalize one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    x = load_row(x_ptr, residual_ptr, row * HIDDEN, columns, inside, ADDS)
    x32 = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x32 * x32) / HIDDEN + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    y = (x32 * scale).to(weight.dtype) * weight
    tl.store(out_ptr + row * HIDDEN + columns, y, mask=inside)


def _launch(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalize x, or the sum of x and the residual. The sum overwrites the residual."""
    rows, hidden = x.shape
    out, block, adds = torch.empty_like(x), next_power_of_2(hidden), residual is not None
    _rms_norm_kernel[(rows,)](
        x,
        residual,
        weight,
        out,
        eps,
        HIDDEN=hidden,
        BLOCK=block,
        ADDS=adds,
        # Each thread loads 16 bytes at a time, if that leaves work for at least one warp.
        num_warps=min(16, max(1, block // 256)),
    )
    return out
