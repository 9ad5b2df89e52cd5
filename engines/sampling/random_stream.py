"""Each request's own random numbers, as a function of its seed and the position: no state to keep or to lose.

A request draws the same numbers alone, in any batch, and again after a restart.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits: SplitMix64 (Steele et al., OOPSLA 2014) at step `position`."""
    z = (_mix(seed) + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    return (_mix(z) >> 11) / (1 << 53)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
