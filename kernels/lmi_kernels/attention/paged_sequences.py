"""Inputs of all attention kernels: sequences in the paged KV cache, and parameters of the scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PagedSequences:
    """A step's sequences, and the places of their keys. All tensors are on the device."""

    block_tables: torch.Tensor
    """[num_table_rows, max_blocks], int32: block tables of all running sequences. Entries beyond a sequence's keys are
    not read."""
    table_rows: torch.Tensor
    """[num_seqs], int32: row of each sequence in `block_tables`. Not read if `seq_lens` is 0."""
    seq_lens: torch.Tensor
    """[num_seqs], int32: keys of each sequence, including this step's; 0: padding, without queries."""


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """Parameters that turn the product of a query and a key into a score."""

    scale: float
    window: int | None = None
    """Sliding window: number of latest keys that a query sees, including its own; None: all keys."""
    softcap: float | None = None
    """Soft cap: scores become cap * tanh(score / cap), after scaling (Gemma 2, arXiv:2408.00118)."""
    alibi_slopes: torch.Tensor | None = None
    """[num_heads], fp32, on the device: slope * (key position - query position) is added (arXiv:2108.12409)."""
    sinks: torch.Tensor | None = None
    """[num_heads], fp32, on the device: score of an additional key with a value of zero (gpt-oss, arXiv:2508.10925)."""
