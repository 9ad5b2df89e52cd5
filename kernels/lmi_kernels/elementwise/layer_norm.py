"""LayerNorm: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias (Ba et al. 2016, arXiv:1607.06450), accumulated in
fp32, optionally fused with the residual addition. One call can apply two pairs of weight and bias, because attention
and MLP of Falcon-40B have separate LayerNorms of the same input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from lmi_kernels._triton import jit, next_power_of_2, tl, uses_triton
from lmi_kernels.cpu.recorder import Rows
from lmi_kernels.elementwise.norm_rows import load_row

Affine = tuple[torch.Tensor, torch.Tensor | None]
"""Weight and bias of a LayerNorm, [hidden] each; None: no bias."""
Results = tuple[torch.Tensor, ...]


def layer_norms(x: torch.Tensor, affines: Sequence[Affine], eps: float) -> Results:
    """Normalize once, then scale and shift with each of the affines.

    Args:
        x: [num_tokens, hidden].
        affines: one or two.

    Returns: one tensor for each of the affines, [num_tokens, hidden] in x's dtype.
    """
    if isinstance(x, Rows):
        return tuple(x.recorder.layer_norm(x, weight, bias, eps) for weight, bias in affines)
    if not uses_triton(x):
        return _layer_norms_torch(x, affines, eps)
    return _launch(x, None, affines, eps)


def add_layer_norms(
    x: torch.Tensor, residual: torch.Tensor, affines: Sequence[Affine], eps: float
) -> tuple[Results, torch.Tensor]:
    """Add a branch's output to the residual stream, and normalize the sum.

    Args:
        x: [num_tokens, hidden], the branch's output. May be overwritten.
        residual: [num_tokens, hidden], the residual stream. May be overwritten by the sum.
        affines: one or two.

    Returns: the normalized sums, one for each of the affines, and the sum, each [num_tokens, hidden] in x's dtype.
    """
    if isinstance(x, Rows):
        total = x + residual
        return layer_norms(total, affines, eps), total
    if not uses_triton(x):
        residual = residual + x
        return _layer_norms_torch(residual, affines, eps), residual
    return _launch(x, residual, affines, eps), residual


def _layer_norms_torch(x: torch.Tensor, affines: Sequence[Affine], eps: float) -> Results:
    """Compute the norms with torch's LayerNorm, so that results are bit-equal to those of transformers."""
    return tuple(F.layer_norm(x, x.shape[-1:], weight, bias, eps) for weight, bias in affines)


@jit
def _scaled_and_shifted(normed, weight_ptr, bias_ptr, columns, inside):
    """Return normed * weight + bias in fp32. bias_ptr: None if there is no bias."""
    y = normed * tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    return y


@jit
def _layer_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    weight2_ptr,
    bias2_ptr,
    out2_ptr,
    eps,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
    TWO: tl.constexpr,
):
    """Normalize one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    x = load_row(x_ptr, residual_ptr, row * HIDDEN, columns, inside, ADDS)
    x32 = x.to(tl.float32)
    mean = tl.sum(x32) / HIDDEN
    # The variance is computed from differences, because mean(x^2) - mean(x)^2 would cancel. The row is in registers.
    centered = tl.where(inside, x32 - mean, 0.0)
    normed = centered * tl.rsqrt(tl.sum(centered * centered) / HIDDEN + eps)
    y = _scaled_and_shifted(normed, weight_ptr, bias_ptr, columns, inside)
    tl.store(out_ptr + row * HIDDEN + columns, y.to(x.dtype), mask=inside)
    if TWO:
        y2 = _scaled_and_shifted(normed, weight2_ptr, bias2_ptr, columns, inside)
        tl.store(out2_ptr + row * HIDDEN + columns, y2.to(x.dtype), mask=inside)


def _launch(x: torch.Tensor, residual: torch.Tensor | None, affines: Sequence[Affine], eps: float) -> Results:
    """Normalize x, or the sum of x and the residual. The sum overwrites the residual."""
    rows, hidden = x.shape
    block = next_power_of_2(hidden)
    outs = tuple(torch.empty_like(x) for _ in affines)
    _layer_norm_kernel[(rows,)](
        x,
        residual,
        *affines[0],
        outs[0],
        *affines[-1],
        outs[-1],
        eps,
        HIDDEN=hidden,
        BLOCK=block,
        ADDS=residual is not None,
        TWO=len(affines) == 2,
        # Each thread loads 16 bytes at a time, if that leaves work for at least one warp.
        num_warps=min(16, max(1, block // 256)),
    )
    return outs
