"""Draw a token of each row by its own number."""

from __future__ import annotations

import torch

from engines.sampling.cumulative import fixed_point


def draw(logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Invert each row's cumulative distribution at its number.

    logits: [num_rows, vocab_size], fp32; numbers: [num_rows], fp64, in [0, 1) -> token ids, [num_rows], int64.
    Tokens of probability 0 are never drawn. A row that is not finite gets any id.
    """
    cumulative = fixed_point(logits.softmax(dim=-1)).cumsum_(dim=-1)
    # In parts of the whole, whose rounding else leaves numbers that no token answers to; `right` passes over tokens of
    # probability 0.
    total = cumulative[:, -1]
    targets = torch.minimum((numbers * total).to(torch.int64), total - 1)
    drawn = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
    return drawn.clamp_(max=logits.shape[-1] - 1)
