"""y = sum of a row's parts, one of each expert that it chose, best first, accumulated in fp32."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels._triton import cdiv, jit, tl
from lmi_kernels.checks import ROUNDING, Inputs, OpCheck, Results

_BLOCK = 1024


@jit
def _sum_choices_kernel(parts_ptr, out_ptr, HIDDEN: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK columns of one row a program."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    total = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(TOP_K):
        part = tl.load(parts_ptr + (row * TOP_K + rank) * HIDDEN + columns, mask=inside, other=0.0)
        total += part.to(tl.float32)
    tl.store(out_ptr + row * HIDDEN + columns, total.to(out_ptr.dtype.element_ty), mask=inside)


def sum_choices(parts: torch.Tensor, top_k: int) -> torch.Tensor:
    """parts: [num_rows * top_k, hidden], a row's one after another -> [num_rows, hidden] in their dtype.

    No atomic additions: the order of the sum is always the same.
    """
    num_choices, hidden = parts.shape
    out = parts.new_empty(num_choices // top_k, hidden)
    grid = (len(out), cdiv(hidden, _BLOCK))
    _sum_choices_kernel[grid](parts, out, HIDDEN=hidden, TOP_K=top_k, BLOCK=_BLOCK, num_warps=4)
    return out


def _launch(parts: torch.Tensor, top_k: int) -> Results:
    return (sum_choices(parts, top_k),)


def sum_choices_reference(parts: torch.Tensor, top_k: int) -> Results:
    """fp64."""
    return (parts.double().view(-1, top_k, parts.shape[1]).sum(dim=1),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, top_k, hidden in ((1, 1, 36), (3, 2, 1500), (5, 3, 64)):
        yield {"parts": torch.randn(rows * top_k, hidden, generator=generator).to(dtype), "top_k": top_k}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    """None: compiled with `experts`, which alone launches it."""
    return iter(())


CHECKS = (OpCheck("sum_choices", _launch, sum_choices_reference, _examples, _production, ROUNDING),)
