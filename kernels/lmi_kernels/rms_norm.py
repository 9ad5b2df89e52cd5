"""y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, arXiv:1910.07467), accumulated in fp32."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: [num_tokens, hidden], weight: [hidden] -> [num_tokens, hidden] in x's dtype.

    The order of operations is that of transformers' LlamaRMSNorm, so that fp32 results are bit-equal.
    """
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True).add_(eps))
    return weight * (x32 * scale).to(x.dtype)
