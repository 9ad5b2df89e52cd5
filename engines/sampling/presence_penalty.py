"""Make tokens that stand in the output less likely, however often they do: OpenAI's `presence_penalty`."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch
from engines.sampling.places import places_of, spread


def presence_penalty(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """logit - p for tokens of the output; those of the prompt alone keep theirs.

    logits: [num_rows, vocab_size], fp32, contiguous, changed in place.
    """
    asking = [
        (i, row.params.presence_penalty, state.output_ids)
        for i, (row, state) in enumerate(zip(batch.rows, batch.states, strict=True))
        if state is not None and state.output_ids and row.params.presence_penalty != 0.0
    ]
    if not asking:
        return
    rows, penalties, token_ids = zip(*asking, strict=True)
    logits.view(-1)[places_of(logits, rows, token_ids)] -= spread(penalties, token_ids, logits)
