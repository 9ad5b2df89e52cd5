"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): a Llama whose query and key heads are normalised, each for itself."""

from __future__ import annotations

from engines.layers.attention import Attention
from engines.models import blocks
from engines.models.blocks import Parts
from engines.models.config import ModelConfig
from engines.models.llama import Llama
from engines.models.weights import WeightSource
from engines.parallel import Communicator
from engines.stopwatch import Stopwatch


class Qwen3(Llama):
    """One rank's part of a dense Qwen3 model."""

    def __init__(
        self, config: ModelConfig, weights: WeightSource, comm: Communicator, stopwatch: Stopwatch
    ) -> None:
        """As `Llama`."""
        super().__init__(config, weights, comm, stopwatch, attention=_attention)


def _attention(parts: Parts, layer: int, prefix: str) -> Attention:
    """One weight for all query heads and one for all key heads: every rank has them."""
    shape = (parts.config.head_dim,)
    queries = parts.weights.whole(f"{prefix}.q_norm.weight", shape)
    keys = parts.weights.whole(f"{prefix}.k_norm.weight", shape)
    return blocks.attention(parts, layer, prefix, (queries, keys))
