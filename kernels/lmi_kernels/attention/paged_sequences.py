"""The inputs of all attention kernels: sequences in the paged cache, and how scores are computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lmi_kernels._triton import jit, tl


@dataclass(frozen=True, slots=True)
class PagedSequences:
    """A step's sequences and where their keys are. All tensors are on the device."""

    block_tables: torch.Tensor
    """[num_table_rows, max_blocks], int32, of all running sequences; entries beyond a sequence's keys are not
    read."""
    table_rows: torch.Tensor
    """[num_seqs], int32: each sequence's row of the block tables; not read where `seq_lens` is 0."""
    seq_lens: torch.Tensor
    """[num_seqs], int32: keys of each sequence, including the step's own; 0: padding, without queries."""


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """How a query's product with a key becomes a score."""

    scale: float
    window: int | None = None
    """Keys that a query sees, up to and including its own; None: all."""
    softcap: float | None = None
    """cap * tanh(score / cap), after scaling (Gemma 2, arXiv:2408.00118)."""
    alibi_slopes: torch.Tensor | None = None
    """[num_heads], fp32, on the device: slope * (key's position - query's) is added (arXiv:2108.12409)."""
    sinks: torch.Tensor | None = None
    """[num_heads], fp32, on the device: the score of one more key, whose value is zero (gpt-oss, arXiv:2508.10925)."""


@jit
def soft_cap(scores, cap):
    """cap * tanh(scores / cap), by exp, which Triton has for every target."""
    # tanh(x) = 1 - 2 / (exp(2x) + 1) is no NaN for large or small x.
    return cap * (1.0 - 2.0 / (tl.exp(2.0 * scores / cap) + 1.0))
