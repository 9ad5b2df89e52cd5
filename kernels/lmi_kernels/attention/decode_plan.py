"""Who computes what in decode attention: the keys of a whole batch, dealt out evenly over a fixed grid, on the device.

The keys that each sequence's query sees are cut into tiles; the tiles of all sequences, one sequence after the other,
are cut into equal runs, one a program (Stream-K, Osama et al. 2023, arXiv:2301.03598, for attention). So one long
sequence beside many short ones is balanced like any other batch, and the grid depends on the device alone, as CUDA
graphs need it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lmi_kernels import tuning
from lmi_kernels._triton import jit, next_power_of_2, tl
from lmi_kernels.attention.paged_sequences import PagedSequences, ScoreRules

_BLOCK = 1024
"""Sequences, and programs, that the planning block looks at once."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Program p has the tiles [p * tiles_per_program, (p + 1) * tiles_per_program) of the concatenation of all
    sequences' tiles, as far as there are so many. For each kv head the same."""

    tile_starts: torch.Tensor
    """[num_seqs + 1], int32: sequence i has the tiles [tile_starts[i], tile_starts[i + 1]), none if it is padding."""
    program_starts: torch.Tensor
    """[num_programs + 1], int32: the sequence of each program's first tile; where there is no such tile, the sequence
    of the last tile of all."""
    tiles_per_program: torch.Tensor
    """[1], int32."""
    num_programs: int
    block_n: int
    """Keys of a tile."""


def plan_decode(
    sequences: PagedSequences,
    num_kv_heads: int,
    head_dim: int,
    rules: ScoreRules,
    num_programs: int | None = None,
    tuned: tuning.Parameters | None = None,
) -> DecodePlan:
    """Plan once a step, for all layers of the same `rules.window`.

    Args:
        num_kv_heads: of this rank; each has a grid of its own.
        num_programs: for tests; else as many as the device can run at once.
        tuned: for tests; else the device's launch parameters.
    """
    if tuned is None:
        tuned = tuning.parameters("decode_attention", tuning_key(head_dim), sequences.seq_lens.device)
    if num_programs is None:
        num_programs = _that_fill(sequences.seq_lens.device, num_kv_heads, tuned)
    num_seqs = sequences.seq_lens.shape[0]
    make = sequences.seq_lens.new_empty
    plan = DecodePlan(make(num_seqs + 1), make(num_programs + 1), make(1), num_programs, tuned["block_n"])
    _plan_kernel[(1,)](
        sequences.seq_lens,
        plan.tile_starts,
        plan.program_starts,
        plan.tiles_per_program,
        num_seqs,
        num_programs,
        num_seqs.bit_length(),
        WINDOW=rules.window or 0,
        BLOCK_N=plan.block_n,
        MIN_TILES=tuned["min_tiles"],
        BLOCK=_BLOCK,
    )
    return plan


def _that_fill(device: torch.device, num_kv_heads: int, tuned: tuning.Parameters) -> int:
    """Programs for each kv head, so that all together run at once and leave nothing idle."""
    at_once = tuning.num_multiprocessors(device) * tuned["blocks_per_multiprocessor"]
    return max(1, at_once // num_kv_heads)


def tuning_key(head_dim: int) -> str:
    """Head dims that are padded to the same power of two share their parameters."""
    return str(max(64, next_power_of_2(head_dim)))


@jit(do_not_specialize=("num_seqs", "search_steps"))
def _plan_kernel(
    seq_lens_ptr,
    tile_starts_ptr,
    program_starts_ptr,
    tiles_per_program_ptr,
    num_seqs,
    num_programs,
    search_steps,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_TILES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One block: running sums of tiles, then a search in them for each program's first tile."""
    lanes = tl.arange(0, BLOCK)
    total = 0
    for first in range(0, num_seqs, BLOCK):
        i = first + lanes
        seq_len = tl.load(seq_lens_ptr + i, mask=i < num_seqs, other=0)
        tiles = (seq_len + (BLOCK_N - 1)) // BLOCK_N
        if WINDOW:
            # Those before the window's first key are left out.
            tiles -= tl.maximum(seq_len - WINDOW, 0) // BLOCK_N
        tl.store(tile_starts_ptr + 1 + i, total + tl.cumsum(tiles, 0), mask=i < num_seqs)
        total += tl.sum(tiles)
    tl.store(tile_starts_ptr, 0)
    # Fewer tiles than this are not worth a program of their own and a share of the combination.
    per_program = tl.maximum((total + num_programs - 1) // num_programs, MIN_TILES)
    tl.store(tiles_per_program_ptr, per_program)
    # The search reads what other threads of this block have written.
    tl.debug_barrier()
    for first in range(0, num_programs + 1, BLOCK):
        program = first + lanes
        tile = tl.minimum(program * per_program, tl.maximum(total - 1, 0))
        # The sequence is in [low, high]: the first whose tiles end behind `tile`.
        low = tl.zeros([BLOCK], tl.int32)
        high = low + (num_seqs - 1)
        for _ in range(search_steps):
            middle = (low + high) // 2
            behind = tl.load(tile_starts_ptr + 1 + middle) > tile
            high = tl.where(behind, middle, high)
            low = tl.where(behind, low, tl.minimum(middle + 1, high))
        tl.store(program_starts_ptr + program, low, mask=program <= num_programs)
