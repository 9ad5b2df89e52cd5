"""Second kernel of decode attention: combine the partial results of sequences that were split over programs."""

from __future__ import annotations

import torch

from lmi_kernels._triton import jit, next_power_of_2, tl
from lmi_kernels.attention.decode_plan import DecodePlan


def combine_parts(
    plan: DecodePlan, parts: torch.Tensor, maxima: torch.Tensor, sums: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the rows of sequences that were split, and zeros to padding rows. Other rows are not changed.

    out = sum_p 2^(max_p - max) part_p / sum_p 2^(max_p - max) sum_p

    Args:
        parts: [num_programs + num_seqs, num_heads, head_dim], fp32: slot p + i holds program p's weighted sum
            for sequence i, not yet divided. Only slots of sequences that were split are read.
        maxima: [num_programs + num_seqs, num_heads], fp32: largest score, to base 2.
        sums: [num_programs + num_seqs, num_heads], fp32: sum of 2^(score - maximum).
        out: [num_seqs, num_heads, head_dim]; each row is contiguous.
    """
    num_seqs, num_heads, head_dim = out.shape
    # The grid does not grow with the batch, because the end of a program splits at most one sequence.
    _combine_kernel[(plan.num_programs, num_heads)](
        plan.tile_starts,
        plan.program_starts,
        plan.tiles_per_program,
        parts,
        maxima,
        sums,
        out,
        num_seqs,
        num_heads,
        out.stride(0),
        HEAD_DIM=head_dim,
        DIM=next_power_of_2(head_dim),
        PARTS=16,
        SEQUENCES=32,
        num_warps=4,
    )


@jit(do_not_specialize=("num_seqs",))
def _combine_kernel(
    tile_starts_ptr,
    program_starts_ptr,
    tiles_per_program_ptr,
    parts_ptr,
    maxima_ptr,
    sums_ptr,
    out_ptr,
    num_seqs,
    num_heads,
    out_stride,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    PARTS: tl.constexpr,
    SEQUENCES: tl.constexpr,
):
    """Combine one head of the sequence that begins in this program and ends in a later one, if there is one.

    Each program also writes zeros to the padding among every num_programs-th sequence.
    """
    program = tl.program_id(0)
    head = tl.program_id(1)
    num_programs = tl.num_programs(0)
    per_program = tl.load(tiles_per_program_ptr)
    seq = tl.load(program_starts_ptr + program + 1)
    dim = tl.arange(0, DIM)
    inside = dim < HEAD_DIM
    out_ptr += head * HEAD_DIM

    for first in range(program, num_seqs, num_programs * SEQUENCES):
        i = first + tl.arange(0, SEQUENCES) * num_programs
        tiles = tl.load(tile_starts_ptr + i + 1, mask=i < num_seqs, other=1) - tl.load(
            tile_starts_ptr + i, mask=i < num_seqs, other=0
        )
        rows = out_ptr + i.to(tl.int64)[:, None] * out_stride + dim[None, :]
        tl.store(rows, 0.0, mask=(tiles == 0)[:, None] & inside[None, :])

    begin = tl.load(tile_starts_ptr + seq)
    end = tl.load(tile_starts_ptr + seq + 1)
    program_end = (program + 1) * per_program
    if (program * per_program <= begin) & (begin < program_end) & (program_end < end):
        row_max = float("-inf")
        row_sum = 0.0
        acc = tl.full([DIM], 0.0, tl.float32)
        last_slot = (end - 1) // per_program + seq
        for first in range(program + seq, last_slot + 1, PARTS):
            slot = first + tl.arange(0, PARTS)
            written = slot <= last_slot
            at = slot.to(tl.int64) * num_heads + head
            part = tl.load(
                parts_ptr + at[:, None] * HEAD_DIM + dim[None, :],
                mask=written[:, None] & inside[None, :],
                other=0.0,
            )
            maxima = tl.load(maxima_ptr + at, mask=written, other=float("-inf"))
            sums = tl.load(sums_ptr + at, mask=written, other=0.0)
            new_max = tl.maximum(row_max, tl.max(maxima, 0))
            rescale = tl.exp2(row_max - new_max)
            weight = tl.exp2(maxima - new_max)
            row_sum = row_sum * rescale + tl.sum(weight * sums, 0)
            acc = acc * rescale + tl.sum(weight[:, None] * part, 0)
            row_max = new_max
        out = (acc / row_sum).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + seq.to(tl.int64) * out_stride + dim, out, mask=inside)
