"""Make tokens that stand in the sequence less likely (CTRL, Keskar et al. 2019, arXiv:1909.05858)."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch
from engines.sampling.places import places_of, spread


def repetition_penalty(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """logit / p where positive, logit * p where negative, for tokens of prompt and output.

    logits: [num_rows, vocab_size], fp32, contiguous, changed in place.
    """
    asking = [
        (i, row.params.repetition_penalty, state.seen)
        for i, (row, state) in enumerate(zip(batch.rows, batch.states, strict=True))
        if state is not None and state.seen
    ]
    if not asking:
        return
    rows, penalties, token_ids = zip(*asking, strict=True)
    places = places_of(logits, rows, token_ids)
    penalty = spread(penalties, token_ids, logits)
    flat = logits.view(-1)
    values = flat[places]
    # A token that stands there more than once has the same value each time.
    flat[places] = torch.where(values < 0, values * penalty, values / penalty)
