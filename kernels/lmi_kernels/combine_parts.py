"""The parts of decode attention's sequences that several programs have had, put together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from lmi_kernels._triton import jit, next_power_of_2, tl
from lmi_kernels.checks import ROUNDING, Inputs, OpCheck, Results
from lmi_kernels.decode_plan import EXAMPLE_TILES, DecodePlan, plan_decode, plan_reference
from lmi_kernels.paged_sequences import PagedSequences, ScoreRules


def combine_parts(
    plan: DecodePlan, parts: torch.Tensor, maxima: torch.Tensor, sums: torch.Tensor, out: torch.Tensor
) -> None:
    """Write `out` where a sequence was cut, and zeros where there is none; other rows stay as they are.

    out = sum_p 2^(max_p - max) part_p / sum_p 2^(max_p - max) sum_p

    Args:
        parts: [num_programs + num_seqs, num_heads, head_dim], fp32: in slot p + i what program p has of sequence i,
            not yet divided. Only slots of sequences that were cut are read.
        maxima: [num_programs + num_seqs, num_heads], fp32: greatest score, to base 2.
        sums: as maxima: of 2^(score - maximum).
        out: [num_seqs, num_heads, head_dim], a row's heads side by side.
    """
    num_seqs, num_heads, head_dim = out.shape
    # The grid does not grow with the batch: a program's end cuts at most one sequence.
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
    """One head of the sequence that begins with this program and does not end with it, if there is one; and zeros for
    every num_programs-th sequence that is padding."""
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


def _combine_checked(
    seq_lens: torch.Tensor,
    num_programs: int,
    parts: torch.Tensor,
    maxima: torch.Tensor,
    sums: torch.Tensor,
    out: torch.Tensor,
) -> Results:
    sequences = PagedSequences(seq_lens.new_empty(0, 0), seq_lens.new_empty(0), seq_lens)
    plan = plan_decode(sequences, 1, out.shape[2], ScoreRules(1.0), num_programs, EXAMPLE_TILES)
    combine_parts(plan, parts, maxima, sums, out)
    return (out,)


def _combine_reference(
    seq_lens: torch.Tensor,
    num_programs: int,
    parts: torch.Tensor,
    maxima: torch.Tensor,
    sums: torch.Tensor,
    out: torch.Tensor,
) -> Results:
    tile_starts, _, tiles_per_program = plan_reference(seq_lens.tolist(), None, num_programs, EXAMPLE_TILES)
    starts, per_program = tile_starts.tolist(), int(tiles_per_program)
    expected = out.double()
    for i, (begin, end) in enumerate(pairwise(starts)):
        programs = torch.arange(begin // per_program, -(-end // per_program))
        if begin == end:
            expected[i] = 0
        elif len(programs) > 1:
            at = programs + i
            weight = torch.exp2(maxima[at].double() - maxima[at].double().amax(0))
            total = (weight * sums[at].double()).sum(0)
            expected[i] = (weight[..., None] * parts[at].double()).sum(0) / total[:, None]
    return (expected,)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    batches: tuple[tuple[list[int], int], ...] = (
        ([6000], 40),
        ([0, 1500, 0, 10, 20, 1500, 0], 6),
        ([50, 60, 70], 2),
        ([10] * 50 + [0] * 40, 1),
        ([0, 0], 3),
    )
    for lengths, num_programs in batches:
        for heads, head_dim in ((3, 64), (2, 80)):
            slots = len(lengths) + num_programs
            yield {
                "seq_lens": torch.tensor(lengths, dtype=torch.int32),
                "num_programs": num_programs,
                "parts": torch.randn(slots, heads, head_dim, generator=generator),
                "maxima": 9 * torch.randn(slots, heads, generator=generator),
                "sums": 1 + torch.rand(slots, heads, generator=generator),
                "out": torch.randn(len(lengths), heads, head_dim, generator=generator).to(dtype),
            }


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    """Compiled with decode attention, whose second kernel it is."""
    return iter(())


CHECKS = (OpCheck("combine_parts", _combine_checked, _combine_reference, _examples, _production, ROUNDING),)
