"""Tensor-parallel layers: each rank builds its own part and knows what to add up."""
