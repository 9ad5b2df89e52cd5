"""Slopes of ALiBi (Press et al. 2022, arXiv:2108.12409)."""

from __future__ import annotations

import math


def alibi_slopes(num_heads: int, largest_exponent: float = 8.0) -> tuple[float, ...]:
    """Return a slope for each query head: powers of two from 2**(-largest_exponent / n) on, where n is the number of
    heads; if that is no power of two, those of the next power below, then every second one of the next above."""
    below = 1 << math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-largest_exponent * head / below) for head in range(1, below + 1)]
    between = [2.0 ** (-largest_exponent * head / (2 * below)) for head in range(1, 2 * below, 2)]
    return tuple((slopes + between)[:num_heads])
