"""Sums of probabilities that do not depend on the order of adding: of whole numbers.

Sums of floating-point numbers have other bits when a library adds in another order, which may depend on the batch, the
number of threads and the device; a token at the edge of a nucleus would come and go with them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

_BITS = 62
_FIRST_LOOK = 128
"""So many of the likeliest tokens are ordered at first; sorting a whole vocabulary takes 20 times as long."""
_WIDER = 16


def fixed_point(probabilities: torch.Tensor) -> torch.Tensor:
    """In units of 2**-62, int64; a sum over a vocabulary, which is 1 but for rounding, stays below 2**63.

    probabilities: fp32, used up: another tensor of a batch's size would cost more than the rest of a draw.
    """
    return probabilities.mul_(2.0**_BITS).to(torch.int64)


def fixed_point_limit(probability: float) -> int:
    """`probability` in the same units, at least 1: the likeliest token always stays."""
    return max(1, math.ceil(probability * (1 << _BITS)))


class Ordered(NamedTuple):
    """The first tokens of each row, best key first."""

    keys: torch.Tensor
    """[num_rows, k]"""
    token_ids: torch.Tensor
    """[num_rows, k], int64"""
    num_kept: torch.Tensor
    """[num_rows], int64, at least 1: so many of them stay."""


def keep_mass(
    logits: torch.Tensor,
    keys: torch.Tensor,
    probabilities: torch.Tensor,
    limits: torch.Tensor,
    ties: bool,
    look: int = _FIRST_LOOK,
) -> None:
    """In each row keep the tokens of the largest keys that together reach the limit; the others become -inf.

    logits, keys, probabilities: [num_rows, vocab_size], fp32, of which `logits` is changed, and may be `keys`.
    limits: [num_rows], int64. ties: as in `keep_first`.
    """
    vocab_size = logits.shape[-1]
    ordered, token_ids = keys.topk(min(look, vocab_size), dim=-1)
    weights = fixed_point(probabilities.gather(1, token_ids))
    # A token stays when those before it have not reached the limit yet.
    stays = weights.cumsum(dim=-1) - weights < limits[:, None]
    beyond = (stays[:, -1] & (ordered[:, -1] > -math.inf)).nonzero()[:, 0]
    if look >= vocab_size:
        beyond = beyond[:0]
    wide = logits[beyond]
    if len(beyond):
        keep_mass(wide, keys[beyond], probabilities[beyond], limits[beyond], ties, look * _WIDER)
    keep_first(logits, keys, Ordered(ordered, token_ids, stays.sum(dim=-1)), ties)
    if len(beyond):
        logits.index_copy_(0, beyond, wide)


def keep_first(logits: torch.Tensor, keys: torch.Tensor, ordered: Ordered, ties: bool) -> None:
    """In each row keep the first `num_kept` of the ordered tokens; the others become -inf.

    Where the last that stays has the key of one that does not: with `ties` all of that key stay, else those with the
    lowest ids, as in a greedy choice.

    logits, keys: [num_rows, vocab_size], fp32, of which `logits` is changed, and may be `keys`.
    """
    width = ordered.keys.shape[-1]
    num_kept = ordered.num_kept[:, None]
    last = ordered.keys.gather(1, num_kept - 1)
    following = ordered.keys.gather(1, num_kept.clamp(max=width - 1))
    tied = ((following == last) & (num_kept < width) & (last > -math.inf))[:, 0].nonzero()[:, 0]
    exact = logits[tied]
    if len(tied):
        last, own_keys = last[tied], keys[tied]
        equal = own_keys == last
        if not ties:
            room = num_kept[tied] - (ordered.keys[tied] > last).sum(dim=-1, keepdim=True)
            equal &= equal.cumsum(dim=-1) <= room
        exact.masked_fill_(~(equal | (own_keys > last)), -math.inf)
    # Few stay of many: writing those is faster than masking the others.
    dropped = torch.arange(width, device=logits.device) >= num_kept
    values = logits.gather(1, ordered.token_ids).masked_fill_(dropped, -math.inf)
    logits.fill_(-math.inf).scatter_(1, ordered.token_ids, values)
    if len(tied):
        logits.index_copy_(0, tied, exact)
