"""Single logits here and there in the batch, as places in the flattened tensor: work that does not grow with the
vocabulary."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import torch


def places_of(logits: torch.Tensor, rows: Sequence[int], token_ids: Sequence[array[int]]) -> torch.Tensor:
    """Where the tokens of each row are in `logits.view(-1)`: row by row.

    logits: [num_rows, vocab_size], contiguous; token_ids: as many as `rows`, none empty -> [all ids], int64.
    """
    starts = torch.tensor(rows) * logits.shape[-1]
    return (joined(token_ids, torch.int32) + starts.repeat_interleave(_lengths(token_ids))).to(logits.device)


def spread(values: Sequence[float], token_ids: Sequence[array[int]], like: torch.Tensor) -> torch.Tensor:
    """Each row's number, once for each of its tokens: [all ids]."""
    return torch.tensor(values, dtype=like.dtype).repeat_interleave(_lengths(token_ids)).to(like.device)


def joined(arrays: Sequence[array[int]] | Sequence[array[float]], dtype: torch.dtype) -> torch.Tensor:
    """One after the other, on the CPU. None may be empty."""
    return torch.cat([torch.frombuffer(each, dtype=dtype) for each in arrays])


def rule_out(logits: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """-inf for each (row, token); ids outside the vocabulary are passed over. logits: contiguous."""
    vocab_size = logits.shape[-1]
    places = [row * vocab_size + token for row, token in pairs if 0 <= token < vocab_size]
    if places:
        logits.view(-1).index_fill_(0, torch.tensor(places, device=logits.device), -math.inf)


def _lengths(arrays: Sequence[array[int]]) -> torch.Tensor:
    return torch.tensor([len(each) for each in arrays])
