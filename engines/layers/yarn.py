"""Rotary frequencies with YaRN scaling (Peng et al. 2023, arXiv:2309.00071)."""

from __future__ import annotations

import math

import torch

from engines.models.config import Yarn


def yarn_frequencies(dim: int, theta: float, yarn: Yarn) -> torch.Tensor:
    """Return the frequencies of dim / 2 pairs of features, fp32. Low frequencies are divided by the factor."""
    powers = theta ** (torch.arange(0, dim, 2).float() / dim)
    low, high = _pair(dim, theta, yarn.beta_fast, yarn), _pair(dim, theta, yarn.beta_slow, yarn)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    slow = ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
    kept = 1 - slow
    return 1.0 / (yarn.factor * powers) * (1 - kept) + 1.0 / powers * kept


def _pair(dim: int, theta: float, turns: float, yarn: Yarn) -> float:
    """Return the index of the pair that makes `turns` rotations in the trained context. It may be fractional."""
    trained = yarn.original_max_position_embeddings
    return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))
