"""Rule out the end until there are enough tokens."""

from __future__ import annotations

import torch

from engines.sampling.batch import SamplingBatch
from engines.sampling.places import rule_out


def min_new_tokens(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """-inf for stop tokens while the output is shorter than `min_new_tokens`.

    logits: [num_rows, vocab_size], fp32, contiguous, changed in place.
    """
    rule_out(
        logits,
        [
            (i, token)
            for i, row in enumerate(batch.rows)
            if len(row.token_ids) - row.num_prompt_tokens < row.params.min_new_tokens
            for token in row.params.stop_token_ids
        ],
    )
