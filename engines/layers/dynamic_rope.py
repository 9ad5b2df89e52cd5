"""Dynamic NTK scaling of rotary embedding: theta grows with the longest sequence."""

from __future__ import annotations

from engines.models.config import DynamicRope


def dynamic_theta(dim: int, theta: float, scaling: DynamicRope, num_positions: int) -> float:
    """Return theta for sequences of up to `num_positions` tokens.

    All sequences have the same theta here. transformers uses the current length of each sequence, and does not rotate
    earlier keys again.
    """
    trained, factor = scaling.max_position_embeddings, scaling.factor
    longest = max(num_positions, trained)
    return float(theta * (factor * longest / trained - (factor - 1)) ** (dim / (dim - 2)))
