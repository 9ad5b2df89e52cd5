"""Truncation (top_k, top_p, min_p) and the choice of a token.

Both use operations of `lmi_kernels` that `DeviceSampler` uses too, so the same logits, parameters and seed give
the same token on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from engines.sampling.batch import SamplingRow
from engines.sampling.plan import SamplingPlan
from lmi_kernels import choose_tokens, logit_thresholds


class Edges(NamedTuple):
    """Limits of the tokens that truncation keeps in each row."""

    thresholds: torch.Tensor
    """[num_rows], fp32: the smallest logit that is kept."""
    last_ids: torch.Tensor
    """[num_rows], int32: among logits equal to the threshold, the largest id that is kept."""

    def ban_others(self, logits: torch.Tensor, rows: Sequence[int]) -> None:
        """Set all other logits of these rows to -inf. logits: [num_rows, vocab_size], fp32, changed in place."""
        ids = torch.arange(logits.shape[1], device=logits.device)
        for i in rows:
            row, edge = logits[i], self.thresholds[i]
            row.masked_fill_((row < edge) | ((row == edge) & (ids > self.last_ids[i])), -math.inf)


def find_edges(logits: torch.Tensor, plan: SamplingPlan) -> Edges:
    """Truncate by top_k (Fan et al. 2018, arXiv:1805.04833), then top_p (Holtzman et al. 2020, arXiv:1904.09751), then
    min_p (Nguyen et al. 2024, arXiv:2407.01082), in the rows that ask for it.

    logits: [num_rows, vocab_size], any float dtype, rows contiguous.
    """
    if not plan.truncates:
        return Edges(*plan.no_edges)
    truncation = plan.temperature, plan.top_k, plan.top_p, plan.min_p
    return Edges(*logit_thresholds(logits, *truncation))


def choose(
    logits: torch.Tensor, rows: Sequence[SamplingRow], plan: SamplingPlan, edges: Edges
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose a token for each row, the most likely or a random one.

    logits: as in `find_edges`.

    Returns: the tokens, [num_rows], int64; and whether the row had one, [num_rows], bool.
    """
    positions = plan.seeds
    if plan.sampled:
        positions = torch.tensor([len(row.token_ids) for row in rows], device=logits.device)
    draw = plan.temperature, *edges, plan.seeds, positions
    return choose_tokens(logits, *draw)
