"""Flatten (above 1) or sharpen (below 1) the distribution."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch

_SMALLEST = 1e-30
"""As sharp as fp32 can tell; below it quotients would overflow, or the divisor itself become 0."""


def temperature(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """logits / temperature; greedy rows keep theirs. logits: [num_rows, vocab_size], fp32 -> the same."""
    divisors = [1.0 if row.params.greedy else max(row.params.temperature, _SMALLEST) for row in batch.rows]
    return logits / torch.tensor(divisors, dtype=torch.float32, device=logits.device)[:, None]
