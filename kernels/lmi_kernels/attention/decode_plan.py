"""Plan of decode attention, made on the device: assign the keys of the batch to the programs of a fixed grid.

Each sequence's visible keys are split into tiles. The tiles of all sequences, in order, are split into equal runs, one
per program (Stream-K, Osama et al. 2023, arXiv:2301.03598, applied to attention). So one long sequence among many short
ones is balanced like any other batch. The grid depends only on the device, as CUDA graphs require.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lmi_kernels import tuning
from lmi_kernels._triton import jit, next_power_of_2, tl
from lmi_kernels.attention.paged_sequences import PagedSequences

_BLOCK = 1024
"""Number of sequences, or programs, that the planning kernel handles at a time."""


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Assignment of tiles to programs, the same for each KV head.

    The tiles of all sequences are numbered in order. Program p computes the tiles [p * tiles_per_program, (p + 1) *
    tiles_per_program), as far as they exist.
    """

    tile_starts: torch.Tensor
    """[num_seqs + 1], int32: sequence i has the tiles [tile_starts[i], tile_starts[i + 1]). Padding has no tiles."""
    program_starts: torch.Tensor
    """[num_programs + 1], int32: the sequence of each program's first tile. For a program without tiles it is the
    sequence of the last tile."""
    tiles_per_program: torch.Tensor
    """[1], int32."""
    num_programs: int
    block_n: int
    """Keys per tile."""


def plan_decode(
    sequences: PagedSequences,
    num_kv_heads: int,
    head_dim: int,
    window: int | None,
    num_programs: int | None = None,
    tuned: tuning.Parameters | None = None,
) -> DecodePlan:
    """Plan a step for all layers with the same window; see `ScoreRules`.

    Args:
        num_kv_heads: number of this rank's KV heads. Each has its own programs.
        num_programs: programs per KV head; None: as many as the device can run at once.
        tuned: launch parameters; None: those of the device.
    """
    if tuned is None:
        tuned = tuning.parameters("decode_attention", tuning_key(head_dim), sequences.seq_lens.device)
    if num_programs is None:
        num_programs = _num_programs_to_fill(sequences.seq_lens.device, num_kv_heads, tuned)
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
        WINDOW=window or 0,
        BLOCK_N=plan.block_n,
        MIN_TILES=tuned["min_tiles"],
        BLOCK=_BLOCK,
    )
    return plan


def _num_programs_to_fill(device: torch.device, num_kv_heads: int, tuned: tuning.Parameters) -> int:
    """Return how many programs per KV head fill the device."""
    at_once = tuning.num_multiprocessors(device) * tuned["blocks_per_multiprocessor"]
    return max(1, at_once // num_kv_heads)


def tuning_key(head_dim: int) -> str:
    """Return the key of the launch parameters. Head dims that are padded to the same power of two share a key."""
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
    """Sum up tiles over sequences, then search the sums for each program's first tile, all in one program."""
    lanes = tl.arange(0, BLOCK)
    total = 0
    for first in range(0, num_seqs, BLOCK):
        i = first + lanes
        seq_len = tl.load(seq_lens_ptr + i, mask=i < num_seqs, other=0)
        tiles = (seq_len + (BLOCK_N - 1)) // BLOCK_N
        if WINDOW:
            # Leave out tiles before the window's first key.
            tiles -= tl.maximum(seq_len - WINDOW, 0) // BLOCK_N
        tl.store(tile_starts_ptr + 1 + i, total + tl.cumsum(tiles, 0), mask=i < num_seqs)
        total += tl.sum(tiles)
    tl.store(tile_starts_ptr, 0)
    # A program with fewer tiles would not be worth the cost of combining its results.
    per_program = tl.maximum((total + num_programs - 1) // num_programs, MIN_TILES)
    tl.store(tiles_per_program_ptr, per_program)
    # The search reads what other threads wrote.
    tl.debug_barrier()
    for first in range(0, num_programs + 1, BLOCK):
        program = first + lanes
        tile = tl.minimum(program * per_program, tl.maximum(total - 1, 0))
        # The sequence, in [low, high], is the first one with tiles that end after `tile`.
        low = tl.zeros([BLOCK], tl.int32)
        high = low + (num_seqs - 1)
        for _ in range(search_steps):
            middle = (low + high) // 2
            behind = tl.load(tile_starts_ptr + 1 + middle) > tile
            high = tl.where(behind, middle, high)
            low = tl.where(behind, low, tl.minimum(middle + 1, high))
        tl.store(program_starts_ptr + program, low, mask=program <= num_programs)
