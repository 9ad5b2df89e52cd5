"""`logit_thresholds` on a CPU with torch. Only rows with truncation are computed, by sorting their likeliest tokens."""

from __future__ import annotations

import torch

from lmi_kernels.sampling.nucleus import nucleus_edge

NO_LAST_ID = 2**31 - 1
"""Last id that allows all logits equal to the threshold."""
_MIN_TEMPERATURE = 1e-30
"""Minimum temperature: dividing by less would overflow fp32 logits."""


def logit_thresholds_cpu(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Implement `logit_thresholds`. The nucleus is computed with integer sums."""
    x = logits.float()
    divisors = temperature.float().clamp(min=_MIN_TEMPERATURE)
    drawn = temperature.float() != 0.0
    thresholds = torch.full((len(x),), -torch.inf)
    last_ids = torch.full((len(x),), NO_LAST_ID, dtype=torch.int32)
    rows = (drawn & (top_k > 0) & (top_k < x.shape[1])).nonzero()[:, 0]
    if len(rows):
        ranks = top_k[rows, None]
        thresholds[rows] = (
            select_rows(x, rows).topk(int(ranks.max()), dim=-1).values.gather(1, ranks - 1)[:, 0]
        )
    rows = (drawn & (top_p < 1.0)).nonzero()[:, 0]
    if len(rows):
        keys, edges = select_rows(x, rows), thresholds[rows, None]
        if bool((edges > -torch.inf).any()):
            keys = keys.where(keys >= edges, -torch.inf)
        probabilities = (keys / divisors[rows, None]).softmax(dim=-1)
        nucleus, num_equal = nucleus_edge(keys, probabilities, top_p[rows])
        # Rounded probabilities may add up to less than top_p. Then all tokens that are left are needed.
        thresholds[rows] = nucleus.maximum(edges[:, 0])
        last_ids[rows] = _last_ids(keys, nucleus, num_equal)
    rows = (drawn & (min_p > 0.0)).nonzero()[:, 0]
    if len(rows):
        # In logarithms, because a ratio of probabilities is a difference of logits. The result is rounded once.
        shares = min_p[rows].float().clamp(min=1e-37).double()
        distances = temperature.float()[rows].double() * shares.log()
        relative = (select_rows(x, rows).amax(dim=-1).double() + distances).float()
        last_ids[rows] = last_ids[rows].where(relative <= thresholds[rows], NO_LAST_ID)
        thresholds[rows] = relative.maximum(thresholds[rows])
    return thresholds.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf), last_ids


def select_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return x if len(rows) == len(x) else x[rows]


def _last_ids(keys: torch.Tensor, edges: torch.Tensor, num_equal: torch.Tensor) -> torch.Tensor:
    """Return the id of the `num_equal`th key of each row that equals the edge, int32. NO_LAST_ID if num_equal is 0."""
    last_ids = torch.full(edges.shape, NO_LAST_ID, dtype=torch.int32)
    tied = num_equal.nonzero()[:, 0]
    if len(tied):
        counts = (keys[tied] == edges[tied, None]).cumsum(dim=-1)
        last_ids[tied] = (counts == num_equal[tied, None]).int().argmax(dim=-1).to(torch.int32)
    return last_ids
