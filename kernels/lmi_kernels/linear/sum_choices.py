"""Sum the results of each row's experts, best expert first, accumulated in fp32."""

from __future__ import annotations

import torch

from lmi_kernels._triton import cdiv, jit, tl

_BLOCK = 1024


@jit
def _sum_choices_kernel(
    parts_ptr,
    slots_ptr,
    out_ptr,
    HIDDEN: tl.constexpr,
    TOP_K: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum BLOCK columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    real = inside
    if HAS_SLOTS:
        # The parts of padding rows were never written.
        real = inside & (tl.load(slots_ptr + row) >= 0)
    total = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(TOP_K):
        part = tl.load(parts_ptr + (row * TOP_K + rank) * HIDDEN + columns, mask=real, other=0.0)
        total += part.to(tl.float32)
    tl.store(out_ptr + row * HIDDEN + columns, total.to(out_ptr.dtype.element_ty), mask=inside)


def sum_choices(parts: torch.Tensor, top_k: int, slots: torch.Tensor | None = None) -> torch.Tensor:
    """Sum each row's parts, always in the same order. Padding rows become 0.

    parts: [num_rows * top_k, hidden], the parts of a row adjacent -> [num_rows, hidden] in their dtype.
    slots: see `route`.
    """
    num_choices, hidden = parts.shape
    out = parts.new_empty(num_choices // top_k, hidden)
    grid = (len(out), cdiv(hidden, _BLOCK))
    _sum_choices_kernel[grid](
        parts,
        slots,
        out,
        HIDDEN=hidden,
        TOP_K=top_k,
        HAS_SLOTS=slots is not None,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return out
