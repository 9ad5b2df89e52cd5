"""Rotary frequencies with LongRoPE scaling (Ding et al. 2024, arXiv:2402.13753)."""

from __future__ import annotations

import torch

from engines.models.config import LongRope


def long_rope_frequencies(dim: int, theta: float, scaling: LongRope, num_positions: int) -> torch.Tensor:
    """Return the frequencies of dim / 2 pairs of features, fp32.

    num_positions: length of the longest sequence. It selects the short or the long factors for all sequences, because
        keys in the cache cannot change their frequencies when a sequence grows.
    """
    long = num_positions > scaling.original_max_position_embeddings
    factors = torch.tensor(scaling.long_factors if long else scaling.short_factors)
    return 1.0 / (factors * theta ** (torch.arange(0, dim, 2).float() / dim))
