"""`choose_tokens` in torch: the same tokens, row by row, with noise for those that may be drawn."""

from __future__ import annotations

import torch

from lmi_kernels.random_numbers_cpu import noise, row_keys


def choose_tokens_cpu(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    thresholds: torch.Tensor,
    last_ids: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    penalized: torch.Tensor,
    penalizes: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `choose_tokens`."""
    x = logits.float()
    if penalizes.any():
        x = penalized.where(penalizes[:, None] != 0, x)
    # NaN counts as larger than every number.
    finite = x.amax(dim=-1).isfinite()
    chosen = x.argmax(dim=-1).where(finite, 0)
    heat, keys = temperature.float(), row_keys(seeds, positions)
    ids = torch.arange(x.shape[1])
    for i in ((heat != 0.0) & finite).nonzero()[:, 0].tolist():
        row = x[i]
        allowed = (row > thresholds[i]) | ((row == thresholds[i]) & (ids <= last_ids[i]))
        tokens = (allowed & (row > -torch.inf)).nonzero()[:, 0]
        scores = row[tokens] + heat[i] * noise(tokens.to(torch.int32), keys.of(i))
        best = scores.argmax() if len(tokens) else None
        finite[i] = best is not None and scores[best] > -torch.inf
        chosen[i] = tokens[best] if finite[i] else 0
    return chosen, finite
