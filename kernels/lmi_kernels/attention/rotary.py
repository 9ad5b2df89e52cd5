"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), in the half-split form of Llama."""

from __future__ import annotations

import torch


def rotary_(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> None:
    """Rotate x in place: x[..., i] * cos -/+ x[..., i +/- d/2] * sin, minus and plus in the first half.

    Args:
        x: [num_tokens, num_heads, head_dim]; may be a part of a larger tensor.
        cos: [num_tokens, 1, head_dim], fp32.
        signed_sin: [num_tokens, 1, head_dim], fp32, the sine with its first half negated, which is done once per step
            instead of once per layer.

    The rotation is computed in fp32.
    """
    half = x.shape[-1] // 2
    if x.dtype == torch.float32:
        swapped = x.roll(half, dims=-1)
        x.mul_(cos).add_(swapped.mul_(signed_sin))  # addcmul_ would round once less than transformers
    else:
        x32 = x.float()
        x.copy_((x32 * cos).add_(x32.roll(half, dims=-1).mul_(signed_sin)))
