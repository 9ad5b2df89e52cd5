"""Make tokens that stand in the sequence less likely (CTRL, Keskar et al. 2019, arXiv:1909.05858)."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch


def repetition_penalty(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """logit / p where positive, logit * p where negative, for seen tokens; p = 1 changes nothing.

    logits: [num_rows, vocab_size], fp32 -> the same.
    """
    if batch.seen is None:
        return logits
    penalty = batch.column("repetition_penalty", logits.device)
    penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(batch.seen, penalised, logits)
