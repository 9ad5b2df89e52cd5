"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), half-split as in Llama or interleaved as in GPT-J."""

from __future__ import annotations

import torch


def rotary_(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor, interleaved: bool = False) -> None:
    """Rotate pairs of features in place: x[i] = x[i] * cos[i] + x[partner of i] * signed_sin[i].

    Args:
        x: [num_tokens, num_heads, dim]; may be a part of a larger tensor.
        cos: [num_tokens, 1, dim], fp32.
        signed_sin: [num_tokens, 1, dim], fp32: the sine, negated for the first feature of each pair, which is done once
            per step instead of once per layer.
        interleaved: features 2i and 2i + 1 are a pair; else features i and i + dim / 2.

    The rotation is computed in fp32.
    """
    if x.dtype == torch.float32:
        swapped = _swapped(x, interleaved)
        x.mul_(cos).add_(swapped.mul_(signed_sin))  # addcmul_ would round once less than transformers
    else:
        x32 = x.float()
        x.copy_((x32 * cos).add_(_swapped(x32, interleaved).mul_(signed_sin)))


def _swapped(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Return a copy with the features of each pair exchanged."""
    if interleaved:
        pairs: torch.Tensor = x.unflatten(-1, (-1, 2))
        return pairs.flip(-1).flatten(-2)
    return x.roll(x.shape[-1] // 2, dims=-1)
