"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), in the half-split form of Llama."""

from __future__ import annotations

import torch


def rotary(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """out[..., i] = x[..., i] * cos - x[..., i + d/2] * sin for the first half, + x[..., i - d/2] * sin for the second.

    Args:
        x: [num_tokens, num_heads, head_dim].
        cos: [num_tokens, 1, head_dim], fp32.
        signed_sin: [num_tokens, 1, head_dim], fp32, the sine with its first half negated: the sign of the
            rotation is folded in once a step and not once a layer.

    Returns:
        [num_tokens, num_heads, head_dim] in x's dtype; the rotation itself is fp32.
    """
    half = x.shape[-1] // 2
    x32 = x.float()
    swapped = torch.cat((x32[..., half:], x32[..., :half]), dim=-1)
    return (x32 * cos).add_(swapped.mul_(signed_sin)).to(x.dtype)
