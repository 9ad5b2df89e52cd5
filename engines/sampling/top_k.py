"""Keep the k most likely tokens (Fan et al. 2018, arXiv:1805.04833)."""

from __future__ import annotations

import math

import torch

from engines.sampling.batch import SamplingBatch


def top_k(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Tokens below the row's k-th largest logit become -inf, ties with it stay; k = 0 changes nothing.

    logits: [num_rows, vocab_size], fp32 -> the same.
    """
    vocab_size = logits.shape[-1]
    ks = [min(row.params.top_k, vocab_size) for row in batch.rows]
    if not any(ks):
        return logits
    largest = logits.topk(max(ks), dim=-1).values
    index = torch.tensor([max(k, 1) - 1 for k in ks], device=logits.device)[:, None]
    threshold = largest.gather(1, index)
    active = torch.tensor([k > 0 for k in ks], device=logits.device)[:, None]
    return logits.masked_fill(active & (logits < threshold), -math.inf)
