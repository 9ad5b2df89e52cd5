"""Rule out token sequences: the last token of each, where the others stand at the end of the sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engines.sampling.batch import SamplingBatch, SamplingRow
from engines.sampling.places import rule_out


def bad_words(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """-inf for tokens that would complete a bad word, also one that begins in the prompt.

    A bad word that is a stop token and nothing else has no effect: generation could not end.

    logits: [num_rows, vocab_size], fp32, contiguous, changed in place.
    """
    rule_out(
        logits,
        [(i, token) for i, row in enumerate(batch.rows) if row.params.bad_words for token in _banned(row)],
    )


def _banned(row: SamplingRow) -> Iterator[int]:
    for *prefix, last in row.params.bad_words:
        if prefix:
            if list(row.token_ids[-len(prefix) :]) == prefix:
                yield last
        elif last not in row.params.stop_token_ids:
            yield last
