"""Keep the smallest set of most likely tokens that has probability p (Holtzman et al. 2020, arXiv:1904.09751)."""

from __future__ import annotations

import math

import torch

from engines.sampling.batch import SamplingBatch


def top_p(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Tokens outside the nucleus become -inf; the most likely always stays; p = 1 changes nothing.

    logits: [num_rows, vocab_size], fp32 -> the same.
    """
    rows = [i for i, row in enumerate(batch.rows) if row.params.top_p < 1.0]
    if not rows:
        return logits
    index = torch.tensor(rows, device=logits.device)
    limit = batch.column("top_p", logits.device)[index]
    ordered, order = logits[index].sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    # A token stays when those before it have not reached p yet.
    outside = probabilities.cumsum(dim=-1) - probabilities >= limit
    outside[:, 0] = False  # also where p is too small for fp32
    kept = ordered.masked_fill(outside, -math.inf)
    return logits.index_copy(0, index, torch.empty_like(kept).scatter_(1, order, kept))
