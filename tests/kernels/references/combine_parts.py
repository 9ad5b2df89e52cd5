"""Reference for `combine_parts` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from lmi_kernels.attention.combine_parts import combine_parts
from lmi_kernels.attention.decode_plan import plan_decode
from tests.kernels.references.check import Inputs, OpCheck, Results
from tests.kernels.references.decode_plan import EXAMPLE_TILES, only_lens, plan_reference


def _launch(seq_lens: torch.Tensor, num_programs: int, out: torch.Tensor, **parts: torch.Tensor) -> Results:
    plan = plan_decode(only_lens(seq_lens), 1, out.shape[2], None, num_programs, EXAMPLE_TILES)
    combine_parts(plan, **parts, out=out)
    return (out,)


def _reference(
    seq_lens: torch.Tensor, num_programs: int, out: torch.Tensor, **partial: torch.Tensor
) -> Results:
    tile_starts, _, tiles_per_program = plan_reference(seq_lens.tolist(), None, num_programs, EXAMPLE_TILES)
    starts, per_program = tile_starts.tolist(), int(tiles_per_program)
    parts, maxima, sums = (partial[name].double() for name in ("parts", "maxima", "sums"))
    expected = out.double()
    for i, (begin, end) in enumerate(pairwise(starts)):
        programs = torch.arange(begin // per_program, -(-end // per_program))
        if begin == end:
            expected[i] = 0
        elif len(programs) > 1:
            at = programs + i
            weight = torch.exp2(maxima[at] - maxima[at].amax(0))
            total = (weight * sums[at]).sum(0)
            expected[i] = (weight[..., None] * parts[at]).sum(0) / total[:, None]
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


CHECKS = (OpCheck("combine_parts", _launch, _reference, _examples),)
