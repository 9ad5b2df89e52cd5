"""Bans: tokens that must not come next get a logit of -inf."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch

from engines.sampling.batch import SamplingBatch, SamplingRow


def bans(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """Ban the last token of each bad word whose other tokens end the sequence, and stop tokens before `min_new_tokens`.

    A bad word may begin in the prompt. A bad word that is a single stop token has no effect, because generation could
    not end. Ids outside the vocabulary are ignored.

    logits: [num_rows, vocab_size], fp32, contiguous, changed in place.
    """
    vocab_size = logits.shape[-1]
    places = [
        i * vocab_size + token
        for i, row in enumerate(batch.rows)
        for tokens in (_bad_words(row), _early_stops(row))
        for token in tokens
        if 0 <= token < vocab_size
    ]
    if places:
        logits.view(-1).index_fill_(0, torch.tensor(places, device=logits.device), -math.inf)


def _bad_words(row: SamplingRow) -> Iterator[int]:
    for *prefix, last in row.params.bad_words:
        if prefix:
            if list(row.token_ids[-len(prefix) :]) == prefix:
                yield last
        elif last not in row.params.stop_token_ids:
            yield last


def _early_stops(row: SamplingRow) -> Iterable[int]:
    too_short = len(row.token_ids) - row.num_prompt_tokens < row.params.min_new_tokens
    return row.params.stop_token_ids if too_short else ()
