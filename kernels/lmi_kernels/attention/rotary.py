"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), half-split as in Llama or interleaved as in GPT-J."""

from __future__ import annotations

import torch


def rotary_(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor, interleaved: bool = False) -> None:
    """Rotate pairs of features in place: x[i] = x[i] * cos[i] + x[partner of i] * signed_sin[i].

    Args:
        x: [num_tokens, num_heads, dim]; may be a view of a larger tensor.
        cos: [num_tokens, 1, dim], fp32.
        signed_sin: [num_tokens, 1, dim], fp32: sines, negated for the first feature of each pair. The caller negates
            them once per step, not once per layer.
        interleaved: whether features 2i and 2i + 1 are a pair; otherwise features i and i + dim / 2.

    The rotation is computed in fp32.
    """
    if x.dtype == torch.float32:
        swapped = _swapped(x, interleaved)
        x.mul_(cos).add_(swapped.mul_(signed_sin))  # addcmul_ would round differently from transformers
    else:
        x32 = x.float()
        x.copy_((x32 * cos).add_(_swapped(x32, interleaved).mul_(signed_sin)))


def _swapped(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Return a copy with the features of each pair exchanged."""
    if interleaved:
        pairs: torch.Tensor = x.unflatten(-1, (-1, 2))
        return pairs.flip(-1).flatten(-2)
    return x.roll(x.shape[-1] // 2, dims=-1)
