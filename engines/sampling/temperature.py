"""Flatten (above 1) or sharpen (below 1) the distribution."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch
from engines.sampling.logit_rows import column, rows_of

_SMALLEST = 1e-30
"""As sharp as fp32 can tell; below it quotients would overflow, or the divisor itself become 0."""


def temperature(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """logits / temperature. logits: [num_rows, vocab_size], fp32, changed in place."""
    rows = [i for i in batch.drawn if batch.rows[i].params.temperature != 1.0]
    if not rows:
        return
    with rows_of(logits, rows) as picked:
        picked /= column([max(batch.rows[i].params.temperature, _SMALLEST) for i in rows], picked)
