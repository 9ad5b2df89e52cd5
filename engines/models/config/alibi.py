"""Slopes of ALiBi (Press et al. 2022, arXiv:2108.12409)."""

from __future__ import annotations

import math


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Return a slope for each query head.

    For n heads, n being a power of two, the slopes are powers of 2**(-8 / n). Otherwise they are the slopes for the
    next smaller power of two, followed by every second slope for the next larger one.
    """
    below = 1 << math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * head / below) for head in range(1, below + 1)]
    between = [2.0 ** (-8.0 * head / (2 * below)) for head in range(1, 2 * below, 2)]
    return tuple((slopes + between)[:num_heads])
