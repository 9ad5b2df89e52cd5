"""What all attention kernels are told of sequences and scores, and what they share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lmi_kernels._triton import jit, tl


@dataclass(frozen=True, slots=True)
class PagedSequences:
    """A step's sequences and where their keys are, all on the device."""

    block_tables: torch.Tensor
    """[num_table_rows, max_blocks], int32: of all running sequences; beyond a sequence's keys stands anything."""
    table_rows: torch.Tensor
    """[num_seqs], int32: each sequence's row of the block tables; anything where `seq_lens` is 0."""
    seq_lens: torch.Tensor
    """[num_seqs], int32: keys of each sequence, the step's own included; 0: padding, without any query."""


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """What becomes of a query's product with a key before the softmax."""

    scale: float
    window: int | None = None
    """A query sees the last so many keys, its own included."""
    softcap: float | None = None
    """cap * tanh(score / cap), after scaling (Gemma 2, arXiv:2408.00118)."""
    alibi_slopes: torch.Tensor | None = None
    """[num_heads], fp32, on the device: slope * (key's position - query's) is added (arXiv:2108.12409)."""


@jit
def soft_cap(scores, cap):
    """cap * tanh(scores / cap), by exp, which Triton has for every target."""
    # tanh(x) = 1 - 2 / (exp(2x) + 1), which neither overflows to NaN for large x nor for small.
    return cap * (1.0 - 2.0 / (tl.exp(2.0 * scores / cap) + 1.0))
