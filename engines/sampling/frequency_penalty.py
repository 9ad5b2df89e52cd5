"""Make tokens less likely by how often they stand in the output: OpenAI's `frequency_penalty`."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch
from engines.sampling.places import joined, places_of, spread


def frequency_penalty(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """logit - p * count for tokens of the output; those of the prompt do not count.

    logits: [num_rows, vocab_size], fp32, contiguous, changed in place.
    """
    asking = [
        (i, row.params.frequency_penalty, state.output_ids, state.output_counts)
        for i, (row, state) in enumerate(zip(batch.rows, batch.states, strict=True))
        if state is not None and state.output_ids and row.params.frequency_penalty != 0.0
    ]
    if not asking:
        return
    rows, penalties, token_ids, counts = zip(*asking, strict=True)
    amounts = spread(penalties, token_ids, logits) * joined(counts, torch.int32).to(logits.device)
    logits.view(-1)[places_of(logits, rows, token_ids)] -= amounts
