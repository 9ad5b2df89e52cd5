"""Flatten (above 1) or sharpen (below 1) the distribution."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch


def temperature(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """logits / temperature; greedy rows keep theirs. logits: [num_rows, vocab_size], fp32 -> the same."""
    column = batch.column("temperature", logits.device)
    return logits / torch.where(column > 0, column, 1.0)
