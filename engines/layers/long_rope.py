"""Rotary frequencies stretched by LongRoPE (Ding et al. 2024, arXiv:2402.13753)."""

from __future__ import annotations

import torch

from engines.models.config import LongRope


def long_rope_frequencies(dim: int, theta: float, scaling: LongRope, num_positions: int) -> torch.Tensor:
    """Return frequencies of dim / 2 pairs of features, fp32.

    num_positions: of the longest sequence. The choice between short and long factors is made once: keys in the cache
        cannot change their frequencies when a sequence grows.
    """
    long = num_positions > scaling.original_max_position_embeddings
    factors = torch.tensor(scaling.long_factors if long else scaling.short_factors)
    return 1.0 / (factors * theta ** (torch.arange(0, dim, 2).float() / dim))
