"""The draw: from which logit on a row's tokens may be drawn, and the choice among them. By operations of `lmi_kernels`
that a `DeviceSampler` uses too, so the same logits, parameters and seed give the same token wherever it is sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from engines.sampling.batch import SamplingRow
from engines.sampling.plan import SamplingPlan
from lmi_kernels import choose_tokens, logit_thresholds


class Edges(NamedTuple):
    """What may be drawn of each row."""

    thresholds: torch.Tensor
    """[num_rows], fp32: no smaller logit."""
    last_ids: torch.Tensor
    """[num_rows], int32: of the logits that equal the threshold, none of a larger id."""

    def rule_out(self, logits: torch.Tensor, rows: Sequence[int]) -> None:
        """-inf for all others of these rows. logits: [num_rows, vocab_size], fp32, changed in place."""
        ids = torch.arange(logits.shape[1], device=logits.device)
        for i in rows:
            row, edge = logits[i], self.thresholds[i]
            row.masked_fill_((row < edge) | ((row == edge) & (ids > self.last_ids[i])), -math.inf)


def find_edges(logits: torch.Tensor, plan: SamplingPlan) -> Edges:
    """By top_k (Fan et al. 2018, arXiv:1805.04833), of what that keeps by top_p (Holtzman et al. 2020,
    arXiv:1904.09751), and of that by min_p (Nguyen et al. 2024, arXiv:2407.01082), in the rows that ask.

    logits: [num_rows, vocab_size], any float dtype, rows contiguous.
    """
    if not plan.truncates:
        return Edges(*plan.no_edges)
    asked = plan.temperature, plan.top_k, plan.top_p, plan.min_p
    return Edges(*logit_thresholds(logits, *asked))


def choose(
    logits: torch.Tensor,
    rows: Sequence[SamplingRow],
    plan: SamplingPlan,
    edges: Edges,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token of each row, [num_rows], int64: the likeliest, or drawn; and whether there was one, [num_rows], bool.

    logits: as of `find_edges`.
    """
    positions = plan.seeds
    if plan.drawn:
        positions = torch.tensor([len(row.token_ids) for row in rows], device=logits.device)
    asked = plan.temperature, *edges, plan.seeds, positions
    return choose_tokens(logits, *asked)
