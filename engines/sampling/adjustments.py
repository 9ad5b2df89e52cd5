"""Penalties and biases: changes of single logits, at a cost that does not grow with the vocabulary."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch

from engines.sampling.batch import SamplingBatch


def penalties(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """Apply repetition, presence and frequency penalties, in this order.

    Repetition (CTRL, Keskar et al. 2019, arXiv:1909.05858): logit / p where positive, logit * p where negative, for
    tokens of prompt and output. Presence and frequency (OpenAI): logit - presence - frequency * count, for tokens of
    the output only.

    logits: [num_rows, vocab_size], fp32, contiguous, changed in place.
    """
    kept = [
        (i, row.params, state)
        for i, (row, state) in enumerate(zip(batch.rows, batch.states, strict=True))
        if state is not None
    ]
    flat = logits.view(-1)
    repeated = [(i, params, state) for i, params, state in kept if state.seen]
    if repeated:
        rows, params, states = zip(*repeated, strict=True)
        token_ids = [state.seen for state in states]
        places = _places(logits, rows, token_ids)
        penalty = _spread([each.repetition_penalty for each in params], token_ids, logits)
        values = flat[places]
        # A token that appears more than once has the same value each time.
        flat[places] = torch.where(values < 0, values * penalty, values / penalty)
    in_output = [(i, params, state) for i, params, state in kept if state.output_ids]
    if in_output:
        rows, params, states = zip(*in_output, strict=True)
        token_ids = [state.output_ids for state in states]
        places = _places(logits, rows, token_ids)
        presence = _spread([each.presence_penalty for each in params], token_ids, logits)
        frequency = _spread([each.frequency_penalty for each in params], token_ids, logits)
        counts = _joined([state.output_counts for state in states], torch.int32).to(logits.device)
        flat[places] = flat[places] - presence - frequency * counts


def logit_bias(logits: torch.Tensor, batch: SamplingBatch) -> None:
    """Add the client's biases (OpenAI's `logit_bias`). logits: as `penalties`."""
    biased = [(i, state) for i, state in enumerate(batch.states) if state is not None and state.bias_ids]
    if biased:
        places = _places(logits, [i for i, _ in biased], [state.bias_ids for _, state in biased])
        amounts = _joined([state.biases for _, state in biased], torch.float32)
        logits.view(-1)[places] += amounts.to(logits.device)


def _places(logits: torch.Tensor, rows: Sequence[int], token_ids: Sequence[array[int]]) -> torch.Tensor:
    """Return the places in `logits.view(-1)` of each row's tokens, row by row: [number of ids], int64."""
    starts = torch.tensor(rows) * logits.shape[-1]
    return (_joined(token_ids, torch.int32) + starts.repeat_interleave(_lengths(token_ids))).to(logits.device)


def _spread(values: Sequence[float], token_ids: Sequence[array[int]], like: torch.Tensor) -> torch.Tensor:
    """Repeat each row's value for each of its tokens: [number of ids], of the dtype and device of `like`."""
    return torch.tensor(values, dtype=like.dtype).repeat_interleave(_lengths(token_ids)).to(like.device)


def _joined(arrays: Sequence[array[int]] | Sequence[array[float]], dtype: torch.dtype) -> torch.Tensor:
    """Concatenate arrays, none of them empty, on the CPU."""
    return torch.cat([torch.frombuffer(each, dtype=dtype) for each in arrays])


def _lengths(arrays: Sequence[array[int]]) -> torch.Tensor:
    return torch.tensor([len(each) for each in arrays])
