"""Locally typical sampling (Meister et al. 2022, arXiv:2202.00666)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engines.sampling.plan import SamplingPlan
from lmi_kernels import nucleus_edge

_MIN_TEMPERATURE = 1e-30
"""Minimum temperature: dividing by less would overflow fp32 logits."""
_LOWEST_LOGPROB = torch.finfo(torch.float32).min
_ENTROPY_UNIT = 2.0**56
"""Fixed-point unit of entropy. Entropy is at most log(vocab_size), below 2**4, so sums stay far below 2**63."""


def ban_truncated(
    logits: torch.Tensor, rows: Sequence[int], thresholds: torch.Tensor, last_ids: torch.Tensor
) -> None:
    """Set the logits that truncation excludes to -inf.

    Args:
        logits: [num_rows, vocab_size], fp32, changed in place in `rows`.
        thresholds, last_ids: [num_rows], see `lmi_kernels.logit_thresholds`.
    """
    ids = torch.arange(logits.shape[1], device=logits.device)
    for i in rows:
        row, edge = logits[i], thresholds[i]
        row.masked_fill_((row < edge) | ((row == edge) & (ids > last_ids[i])), -math.inf)


def typical_p(logits: torch.Tensor, plan: SamplingPlan) -> None:
    """Keep the tokens whose -log p is nearest to the entropy, up to probability typical_p, with ties; ban the others.

    logits: [num_rows, vocab_size], fp32, changed in place in the rows `plan.typical`, which must not be empty.
    """
    rows = torch.tensor(plan.typical, device=logits.device)
    masses = [plan.params[i].typical_p for i in plan.typical]
    picked = logits[rows]
    scaled = picked / plan.temperature[rows].clamp(min=_MIN_TEMPERATURE)[:, None]
    logprobs = scaled.log_softmax(dim=-1)
    probabilities = scaled.softmax(dim=-1)
    # Clamped because -inf * 0 is NaN. Summed as integers, so that the order does not matter.
    parts = logprobs.clamp(min=_LOWEST_LOGPROB).mul_(probabilities).mul_(-_ENTROPY_UNIT).to(torch.int64)
    entropy = (parts.sum(dim=-1, keepdim=True).double() / _ENTROPY_UNIT).float()
    nearness = logprobs.add_(entropy).abs_().neg_()
    edges, _ = nucleus_edge(
        nearness, probabilities, torch.tensor(masses, dtype=torch.float64, device=logits.device)
    )
    logits[rows] = picked.masked_fill_(nearness < edges[:, None], -math.inf)
