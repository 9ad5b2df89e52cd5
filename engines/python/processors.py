"""transformers' logits processors for one row of a batch, set up as `generate` does for that prompt alone."""

from __future__ import annotations

import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
)

from engines.core import GenerateParams, Request


def row_processors(
    params: GenerateParams, request: Request, num_start: int, device: torch.device
) -> LogitsProcessorList:
    """Return the processors that a request's `GenerateParams` require, for one run of the request.

    num_start: number of tokens before the first new one (prompt or decoder start).
    """
    prompt = torch.tensor([request.prompt_token_ids], device=device)
    length = num_start + request.sampling.max_new_tokens
    processors = LogitsProcessorList()
    if params.sequence_bias:
        processors.append(
            SequenceBiasLogitsProcessor([[list(ids), bias] for ids, bias in params.sequence_bias])
        )
    if params.encoder_repetition_penalty != 1.0:
        processors.append(EncoderRepetitionPenaltyLogitsProcessor(params.encoder_repetition_penalty, prompt))
    if params.no_repeat_ngram_size:
        processors.append(NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size))
    if params.encoder_no_repeat_ngram_size:
        processors.append(EncoderNoRepeatNGramLogitsProcessor(params.encoder_no_repeat_ngram_size, prompt))
    if params.forced_bos_token_id:
        processors.append(ForcedBOSTokenLogitsProcessor(params.forced_bos_token_id[0]))
    if params.forced_eos_token_id:
        processors.append(
            ForcedEOSTokenLogitsProcessor(length, list(params.forced_eos_token_id), str(device))
        )
    if params.begin_suppress_tokens:
        begin = num_start + (num_start == 1 and bool(params.forced_bos_token_id))
        processors.append(
            SuppressTokensAtBeginLogitsProcessor(list(params.begin_suppress_tokens), begin, str(device))
        )
    return processors
