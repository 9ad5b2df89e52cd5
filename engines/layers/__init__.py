"""Tensor-parallel layers. Each rank builds only its own shard."""
