"""The draw: from which logit on a row's tokens may be drawn, and the choice among them. By operations of `lmi_kernels`
that a `DeviceSampler` uses too, so the same logits, parameters and seed give the same token wherever it is sampled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from engines.core import SamplingParams
from engines.sampling.batch import SamplingBatch
from lmi_kernels import choose_tokens, logit_thresholds

_ALL_IDS = 2**31 - 1


class Edges(NamedTuple):
    """What may be drawn of each row."""

    thresholds: torch.Tensor
    """[num_rows], fp32: no smaller logit."""
    last_ids: torch.Tensor
    """[num_rows], int32: of the logits that equal the threshold, none of a larger id."""

    def rule_out(self, logits: torch.Tensor) -> None:
        """-inf for all others. logits: [num_rows, vocab_size], fp32, changed in place."""
        edges, ids = self.thresholds[:, None], torch.arange(logits.shape[1], device=logits.device)
        logits.masked_fill_(
            (logits < edges) | ((logits == edges) & (ids > self.last_ids[:, None])), -math.inf
        )


def seed_bits(params: SamplingParams) -> int:
    """A seed's 64 bits, as a number with a sign."""
    return params.seed - ((params.seed >> 63) << 64)


def find_edges(logits: torch.Tensor, batch: SamplingBatch) -> Edges:
    """By top_k (Fan et al. 2018, arXiv:1805.04833), of what that keeps by top_p (Holtzman et al. 2020,
    arXiv:1904.09751), and of that by min_p (Nguyen et al. 2024, arXiv:2407.01082), in the rows that ask.

    logits: [num_rows, vocab_size], fp32, contiguous.
    """
    num_rows, vocab_size = logits.shape
    params = [batch.rows[i].params for i in batch.drawn]
    if not any(each.top_k > 0 or each.top_p < 1.0 or each.min_p > 0.0 for each in params):
        nothing = torch.full((num_rows,), -math.inf, device=logits.device)
        return Edges(nothing, torch.full_like(nothing, _ALL_IDS, dtype=torch.int32))
    top_k = _column(logits, batch, lambda each: min(each.top_k, vocab_size), torch.int64)
    top_p = _column(logits, batch, lambda each: each.top_p)
    min_p = _column(logits, batch, lambda each: each.min_p)
    none = torch.zeros_like(top_k)
    heat = _temperatures(logits, batch)
    return Edges(*logit_thresholds(logits, heat, top_k, top_p, min_p, penalized=logits, penalizes=none))


def choose(logits: torch.Tensor, batch: SamplingBatch, edges: Edges) -> tuple[torch.Tensor, torch.Tensor]:
    """A token of each row, [num_rows], int64: the likeliest, or drawn; and whether there was one, [num_rows], bool.

    logits: [num_rows, vocab_size], fp32, contiguous.
    """
    seeds = _column(logits, batch, seed_bits, torch.int64)
    positions = torch.tensor([len(row.token_ids) for row in batch.rows], device=logits.device)
    none = torch.zeros_like(seeds)
    heat = _temperatures(logits, batch)
    return choose_tokens(logits, heat, *edges, seeds, positions, penalized=logits, penalizes=none)


def _temperatures(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """0 in rows that are not drawn."""
    numbers = [row.params.temperature if row.drawn else 0.0 for row in batch.rows]
    return torch.tensor(numbers, dtype=torch.float64, device=logits.device)


def _column(
    logits: torch.Tensor,
    batch: SamplingBatch,
    of: Callable[[SamplingParams], float],
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """A number a row: [num_rows], on the logits' device."""
    return torch.tensor([of(row.params) for row in batch.rows], dtype=dtype, device=logits.device)
