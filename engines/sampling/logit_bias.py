"""Add what the client says to the logits of single tokens: OpenAI's `logit_bias`."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch
from engines.sampling.places import joined, places_of


def logit_bias(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """logit + bias. logits: [num_rows, vocab_size], fp32, contiguous, changed in place."""
    asking = [
        (i, state.bias_ids, state.biases)
        for i, state in enumerate(batch.states)
        if state is not None and state.bias_ids
    ]
    if not asking:
        return
    rows, token_ids, biases = zip(*asking, strict=True)
    amounts = joined(biases, torch.float32).to(logits.device)
    logits.view(-1)[places_of(logits, rows, token_ids)] += amounts
