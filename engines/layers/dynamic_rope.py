"""Rotary embedding with a theta that grows with the longest sequence: dynamic NTK scaling."""

from __future__ import annotations

from engines.models.config import DynamicRope


def dynamic_theta(dim: int, theta: float, scaling: DynamicRope, num_positions: int) -> float:
    """num_positions: of the longest sequence. transformers takes the length of each sequence so far, for keys that it
    does not turn again; here all sequences have the same theta."""
    trained, factor = scaling.max_position_embeddings, scaling.factor
    longest = max(num_positions, trained)
    return float(theta * (factor * longest / trained - (factor - 1)) ** (dim / (dim - 2)))
