"""transformers' logits processors for one row of a batch, as its `generate` sets them up for that prompt alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
)

from engines.core import GenerateParams, Request


class RowProcessors:
    """What `GenerateParams` of one request come to, for one try at it."""

    def __init__(
        self, params: GenerateParams, request: Request, num_given: int, device: torch.device
    ) -> None:
        """num_given: tokens before the first new one; the prompt's, or those that a decoder starts with."""
        prompt = torch.tensor([request.prompt_token_ids], device=device)
        length = num_given + request.sampling.max_new_tokens
        found: list[LogitsProcessor] = []
        if params.sequence_bias:
            found.append(
                SequenceBiasLogitsProcessor([[list(ids), bias] for ids, bias in params.sequence_bias])
            )
        if params.encoder_repetition_penalty != 1.0:
            found.append(EncoderRepetitionPenaltyLogitsProcessor(params.encoder_repetition_penalty, prompt))
        if params.no_repeat_ngram_size:
            found.append(NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size))
        if params.encoder_no_repeat_ngram_size:
            found.append(EncoderNoRepeatNGramLogitsProcessor(params.encoder_no_repeat_ngram_size, prompt))
        if params.forced_bos_token_id:
            found.append(ForcedBOSTokenLogitsProcessor(params.forced_bos_token_id[0]))
        if params.forced_eos_token_id:
            found.append(ForcedEOSTokenLogitsProcessor(length, list(params.forced_eos_token_id), str(device)))
        if params.begin_suppress_tokens:
            begin = num_given + (num_given == 1 and bool(params.forced_bos_token_id))
            found.append(
                SuppressTokensAtBeginLogitsProcessor(list(params.begin_suppress_tokens), begin, str(device))
            )
        self._processors = LogitsProcessorList(found)

    def __call__(self, token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """Change the logits of the next token.

        token_ids: the row's own, without padding; logits: [vocab_size], fp32 -> the same, a new tensor.
        """
        ids = torch.tensor([token_ids], device=logits.device)
        changed: torch.Tensor = self._processors(ids, logits[None].clone())
        return changed[0]
