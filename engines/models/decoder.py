"""What all our models are: an embedding, layers over one residual stream, a last norm and a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from engines.kv_cache import KvCache
from engines.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engines.layers.step_attention import StepAttention
from engines.models.config import ModelConfig
from engines.partition import split_heads


class Layer(Protocol):
    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, cache: KvCache, step: StepAttention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [num_rows, hidden], what the layer before (or, with no residual, the embedding) adds to the stream.

        Returns: what this layer adds last, and the stream before it.
        """


class Decoder:
    """One rank's part of a model."""

    def __init__(
        self,
        embedding: VocabParallelEmbedding,
        layers: Sequence[Layer],
        norm: Callable[[torch.Tensor], torch.Tensor],
        head: VocabParallelHead,
    ) -> None:
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head

    @staticmethod
    def num_kv_heads(config: ModelConfig, world_size: int, rank: int) -> int:
        """KV heads that one rank holds: at least one, held by others too where ranks are more than KV heads."""
        return split_heads(config.num_heads, config.num_kv_heads, world_size, rank).keys_values.size

    def forward(
        self,
        input_ids: torch.Tensor,
        cache: KvCache,
        step: StepAttention,
        num_layers: int | None = None,
    ) -> torch.Tensor:
        """input_ids: [num_rows], int64 -> hidden states [num_rows, hidden] before the last norm.

        num_layers: only the first so many, to see what does not depend on how many there are.
        """
        x, residual = self._embedding(input_ids), None
        for layer in self._layers[:num_layers]:
            x, residual = layer(x, residual, cache, step)
        return x if residual is None else residual + x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """hidden: [num_rows, hidden], only the rows to be sampled -> [num_rows, vocab_size] on rank 0, else None."""
        return self._head(self._norm(hidden))
