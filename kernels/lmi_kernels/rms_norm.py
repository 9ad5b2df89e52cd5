"""y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, arXiv:1910.07467), accumulated in fp32; with and
without adding to the residual stream first."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels._triton import jit, next_power_of_2, tl, uses_triton
from lmi_kernels.checks import ROUNDING, Inputs, OpCheck, Results
from lmi_kernels.cpu.recorder import Rows


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: [num_tokens, hidden], weight: [hidden] -> [num_tokens, hidden] in x's dtype."""
    if isinstance(x, Rows):
        return x.recorder.norm(x, weight, None, eps)
    if uses_triton(x):
        return rms_norm_triton(x, weight, eps)[0]
    return _rms_norm_torch(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a branch to the residual stream, and normalise the sum.

    Args:
        x: [num_tokens, hidden], what the branch computed; afterwards of no use.
        residual: as x; may be overwritten by the sum.
        weight: [hidden].

    Returns: the normalised sum and the sum, each [num_tokens, hidden] in x's dtype.
    """
    if isinstance(x, Rows):
        total = x + residual
        return rms_norm(total, weight, eps), total
    if uses_triton(x):
        return add_rms_norm_triton(x, residual, weight, eps)
    residual = residual + x
    return _rms_norm_torch(residual, weight, eps), residual


def _rms_norm_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The order of operations is that of transformers' LlamaRMSNorm, so that fp32 results are bit-equal."""
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True).add_(eps))
    return weight * (x32 * scale).to(x.dtype)


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
    """One row a program."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    x = tl.load(x_ptr + row * HIDDEN + columns, mask=inside, other=0.0)
    if ADDS:
        # The sum is rounded before it is normalised: what later layers read is what was normalised.
        x += tl.load(residual_ptr + row * HIDDEN + columns, mask=inside, other=0.0)
        tl.store(residual_ptr + row * HIDDEN + columns, x, mask=inside)
    x32 = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x32 * x32) / HIDDEN + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    y = (x32 * scale).to(x.dtype) * weight
    tl.store(out_ptr + row * HIDDEN + columns, y, mask=inside)


def rms_norm_triton(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Results:
    """As `rms_norm`; returns one tensor."""
    out = torch.empty_like(x)
    _launch(x, x, weight, out, eps, adds=False)
    return (out,)


def add_rms_norm_triton(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `add_rms_norm`; the residual is overwritten by the sum."""
    out = torch.empty_like(x)
    _launch(x, residual, weight, out, eps, adds=True)
    return out, residual


def _launch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float, adds: bool
) -> None:
    rows, hidden = x.shape
    block = next_power_of_2(hidden)
    # 16 bytes a thread and load as long as that leaves a warp to do.
    num_warps = min(16, max(1, block // 256))
    _rms_norm_kernel[(rows,)](
        x, residual, weight, out, eps, HIDDEN=hidden, BLOCK=block, ADDS=adds, num_warps=num_warps
    )


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Results:
    """fp64."""
    wide = x.double()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double(),)


def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> Results:
    """fp64; the sum is rounded to x's dtype, as it is kept."""
    total = (x.double() + residual.double()).to(x.dtype)
    return (*rms_norm_reference(total, weight, eps), total.double())


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, hidden in ((1, 1), (3, 36), (5, 576), (2, 1000)):
        x = torch.randn(rows, hidden, generator=generator).to(dtype)
        weight = torch.randn(hidden, generator=generator).to(dtype)
        yield {"x": x, "weight": weight, "eps": 1e-5}


def _add_examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for inputs in _examples(generator, dtype):
        residual = torch.randn(inputs["x"].shape, generator=generator).to(dtype)
        yield {**inputs, "residual": residual}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    for hidden in (576, 1024, 4096, 8192):
        x = torch.empty(32, hidden, dtype=dtype, device="meta")
        yield {"x": x, "weight": x[0], "eps": 1e-5}


def _add_production(dtype: torch.dtype) -> Iterator[Inputs]:
    for inputs in _production(dtype):
        yield {**inputs, "residual": torch.empty_like(inputs["x"])}


CHECKS = (
    OpCheck("rms_norm", rms_norm_triton, rms_norm_reference, _examples, _production, ROUNDING),
    OpCheck(
        "add_rms_norm", add_rms_norm_triton, add_rms_norm_reference, _add_examples, _add_production, ROUNDING
    ),
)
