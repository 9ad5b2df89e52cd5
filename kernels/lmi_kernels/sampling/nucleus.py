"""Find the nucleus: the smallest set of a row's likeliest tokens with a given total probability.

Probabilities are added as integers. A sum of floating-point numbers depends on the order of additions, which may depend
on the batch, the number of threads and the device. Then a token at the edge of a nucleus would not be reproducible.
"""

from __future__ import annotations

import math

import torch

_BITS = 62
_FIRST_SORTED = 128
"""Number of likeliest tokens to sort at first. Sorting a whole vocabulary takes 20 times as long."""
_GROWTH = 16


def nucleus_edge(
    keys: torch.Tensor, probabilities: torch.Tensor, masses: torch.Tensor, num_sorted: int = _FIRST_SORTED
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the smallest number of tokens, at least one, with the largest keys and a total probability of at least
    `masses`. Return their smallest key, and how many tokens with this key are needed; 0: all of them.

    keys, probabilities: [num_rows, vocab_size], fp32; masses: [num_rows], any float dtype -> [num_rows], fp32, and
    [num_rows], int64.
    """
    vocab_size = keys.shape[-1]
    ordered, token_ids = keys.topk(min(num_sorted, vocab_size), dim=-1)
    # In units of 2**-62. A sum over a vocabulary is about 1, so it does not overflow 2**63.
    weights = probabilities.gather(1, token_ids).mul_(2.0**_BITS).to(torch.int64)
    limits = (masses.double() * 2.0**_BITS).ceil_().to(torch.int64).clamp_(min=1)
    # A token is needed if the tokens before it do not reach the limit.
    needed = weights.cumsum(dim=-1) - weights < limits[:, None]
    count = needed.sum(dim=-1, keepdim=True)
    edges = ordered.gather(1, count - 1)
    following = ordered.gather(1, count.clamp(max=ordered.shape[-1] - 1))
    tied = (following == edges) & (count < ordered.shape[-1])
    num_equal = (count - (ordered > edges).sum(dim=-1, keepdim=True)).where(tied, 0)[:, 0]
    edges = edges[:, 0]
    if num_sorted < vocab_size:
        beyond = (needed[:, -1] & (ordered[:, -1] > -math.inf)).nonzero()[:, 0]
        if len(beyond):
            edges[beyond], num_equal[beyond] = nucleus_edge(
                keys[beyond], probabilities[beyond], masses[beyond], num_sorted * _GROWTH
            )
    return edges, num_equal
