"""Find the likeliest tokens of each row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

TokenLogprobs = tuple[tuple[int, float], ...]
"""Token ids with log-probabilities, likeliest first."""


def likeliest(logprobs: torch.Tensor, counts: Sequence[int]) -> list[TokenLogprobs]:
    """Return the `counts[i]` likeliest tokens of row i, likeliest first. Ties are in the order of token ids.

    Tokens with -inf are left out. logprobs: [len(counts), vocab_size], fp32; each count at least 1.
    """
    vocab_size = logprobs.shape[-1]
    # One more than requested shows whether the last one is tied with a token that is left out.
    values, indices = logprobs.topk(min(max(counts) + 1, vocab_size), dim=-1)
    rows = zip(values.tolist(), indices.tolist(), strict=True)
    result = []
    for i, (count, (row_values, row_indices)) in enumerate(zip(counts, rows, strict=True)):
        pairs = list(zip(row_indices, row_values, strict=True))
        if count < len(pairs) and row_values[count] == row_values[count - 1] > -math.inf:
            edge = row_values[count]
            larger = [pair for pair in pairs if pair[1] > edge]
            equal = (logprobs[i] == edge).nonzero()[: count - len(larger), 0].tolist()
            pairs = larger + [(token, edge) for token in equal]
        pairs = [pair for pair in pairs[:count] if pair[1] > -math.inf]
        result.append(tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))))
    return result
