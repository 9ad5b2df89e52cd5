"""y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias (Ba et al. 2016, arXiv:1607.06450), accumulated in fp32; with
and without adding to the residual stream first, and for one or two pairs of weight and bias at once: Falcon-40B's
attention and MLP each have their own LayerNorm of the same input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from lmi_kernels._triton import jit, next_power_of_2, tl, uses_triton
from lmi_kernels.checks import ROUNDING, Inputs, OpCheck, Results
from lmi_kernels.cpu.recorder import Rows

Affine = tuple[torch.Tensor, torch.Tensor]
"""A LayerNorm's weight and bias, [hidden] each."""


def layer_norms(x: torch.Tensor, affines: Sequence[Affine], eps: float) -> Results:
    """Normalise once, scale and shift with each of the affines.

    Args:
        x: [num_tokens, hidden].
        affines: one or two.

    Returns: as many tensors, each [num_tokens, hidden] in x's dtype.

    Raises:
        ValueError: neither one nor two affines.
    """
    _check(affines)
    if isinstance(x, Rows):
        return tuple(x.recorder.norm(x, weight, bias, eps) for weight, bias in affines)
    if uses_triton(x):
        return layer_norms_triton(x, *_flat(affines), eps=eps)
    return _layer_norms_torch(x, affines, eps)


def add_layer_norms(
    x: torch.Tensor, residual: torch.Tensor, affines: Sequence[Affine], eps: float
) -> tuple[Results, torch.Tensor]:
    """Add a branch to the residual stream, and normalise the sum.

    Args:
        x: [num_tokens, hidden], what the branch computed; afterwards of no use.
        residual: as x; may be overwritten by the sum.
        affines: one or two.

    Returns: the normalised sums, one for each of the affines, and the sum, each [num_tokens, hidden] in x's dtype.

    Raises:
        ValueError: neither one nor two affines.
    """
    _check(affines)
    if isinstance(x, Rows):
        total = x + residual
        return layer_norms(total, affines, eps), total
    if uses_triton(x):
        *outs, residual = add_layer_norms_triton(x, residual, *_flat(affines), eps=eps)
        return tuple(outs), residual
    residual = residual + x
    return _layer_norms_torch(residual, affines, eps), residual


def _layer_norms_torch(x: torch.Tensor, affines: Sequence[Affine], eps: float) -> Results:
    """By torch's own LayerNorm, so that results are bit-equal to transformers'."""
    return tuple(F.layer_norm(x, x.shape[-1:], weight, bias, eps) for weight, bias in affines)


def _check(affines: Sequence[Affine]) -> None:
    if len(affines) not in (1, 2):
        raise ValueError(f"{len(affines)} pairs of weight and bias; accepted are 1 and 2")


def _flat(affines: Sequence[Affine]) -> list[torch.Tensor]:
    return [tensor for affine in affines for tensor in affine]


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
    mean = tl.sum(x32) / HIDDEN
    # Of differences, which does not cancel as mean(x^2) - mean(x)^2 does: the row is in registers.
    centred = tl.where(inside, x32 - mean, 0.0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred) / HIDDEN + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * HIDDEN + columns, (normed * weight + bias).to(x.dtype), mask=inside)
    if TWO:
        weight2 = tl.load(weight2_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        bias2 = tl.load(bias2_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(out2_ptr + row * HIDDEN + columns, (normed * weight2 + bias2).to(x.dtype), mask=inside)


def layer_norms_triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    weight2: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
    *,
    eps: float,
) -> Results:
    """As `layer_norms`, the affines one after the other."""
    return _launch(x, None, (weight, bias), (weight2, bias2), eps)


def add_layer_norms_triton(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    weight2: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
    *,
    eps: float,
) -> Results:
    """As `add_layer_norms`; the residual is overwritten by the sum, which is returned last."""
    return (*_launch(x, residual, (weight, bias), (weight2, bias2), eps), residual)


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    first: Affine,
    second: tuple[torch.Tensor | None, torch.Tensor | None],
    eps: float,
) -> Results:
    rows, hidden = x.shape
    block = next_power_of_2(hidden)
    out = torch.empty_like(x)
    weight2, bias2 = second
    two = weight2 is not None
    out2 = torch.empty_like(x) if two else out
    _layer_norm_kernel[(rows,)](
        x,
        x if residual is None else residual,
        *first,
        out,
        weight2 if two else first[0],
        bias2 if two else first[1],
        out2,
        eps,
        HIDDEN=hidden,
        BLOCK=block,
        ADDS=residual is not None,
        TWO=two,
        # 16 bytes a thread and load as long as that leaves a warp to do.
        num_warps=min(16, max(1, block // 256)),
    )
    return (out, out2) if two else (out,)


def layer_norms_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    weight2: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
    *,
    eps: float,
) -> Results:
    """fp64."""
    wide = x.double()
    wide = wide - wide.mean(-1, keepdim=True)
    normed = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    outs = [normed * weight.double() + bias.double()]
    if weight2 is not None and bias2 is not None:
        outs.append(normed * weight2.double() + bias2.double())
    return tuple(outs)


def add_layer_norms_reference(x: torch.Tensor, residual: torch.Tensor, **rest: Any) -> Results:
    """fp64; the sum is rounded to x's dtype, as it is kept."""
    total = (x.double() + residual.double()).to(x.dtype)
    return (*layer_norms_reference(total, **rest), total.double())


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    for rows, hidden, two in ((1, 1, False), (3, 36, True), (5, 576, False), (2, 1000, True)):
        # Far from zero, as activations are: the mean matters.
        inputs = {
            "x": normal(rows, hidden) + 3,
            "weight": normal(hidden),
            "bias": normal(hidden),
            "eps": 1e-5,
        }
        yield {**inputs, "weight2": normal(hidden), "bias2": normal(hidden)} if two else inputs


def _add_examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for inputs in _examples(generator, dtype):
        yield {**inputs, "residual": torch.randn(inputs["x"].shape, generator=generator).to(dtype)}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # Falcon's: 11B, 7B, 40B's last norm, 40B's layers.
    for hidden, two in ((4096, False), (4544, False), (8192, False), (8192, True)):
        x = torch.empty(32, hidden, dtype=dtype, device="meta")
        inputs = {"x": x, "weight": x[0], "bias": x[0], "eps": 1e-5}
        yield {**inputs, "weight2": x[0], "bias2": x[0]} if two else inputs


def _add_production(dtype: torch.dtype) -> Iterator[Inputs]:
    for inputs in _production(dtype):
        yield {**inputs, "residual": torch.empty_like(inputs["x"])}


CHECKS = (
    OpCheck("layer_norms", layer_norms_triton, layer_norms_reference, _examples, _production, ROUNDING),
    OpCheck(
        "add_layer_norms",
        add_layer_norms_triton,
        add_layer_norms_reference,
        _add_examples,
        _add_production,
        ROUNDING,
    ),
)
