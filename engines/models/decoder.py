"""The decoder that all models share: embedding, layers over one residual stream, final norm and output head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engines.kv_cache import KvCache
from engines.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engines.layers.step_attention import StepAttention
from engines.models import parts as make
from engines.models.layer import ParallelLayer, SequentialLayer
from engines.models.parts import Parts

LargestLogits = Callable[[torch.Tensor], torch.Tensor | None]


class Model(Protocol):
    """One rank's part of a model, as a step uses it: a `Decoder`, or a module of transformers."""

    def forward(self, input_ids: torch.Tensor, cache: KvCache, step: StepAttention) -> torch.Tensor:
        """See `Decoder.forward`."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """See `Decoder.logits`."""

    @property
    def largest_logits(self) -> LargestLogits | None:
        """A function from hidden states, as for `logits`, to what `VocabParallelHead.largest` returns; None if all
        logits must be computed."""


class Layer(Protocol):
    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, cache: KvCache, step: StepAttention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute a layer.

        x: [num_rows, hidden]: the output of the previous layer, or the embedding. The layer adds it to the residual
            stream.
        residual: the residual stream; None in the first layer.

        Returns: this layer's output, which is not yet added to the residual stream, and the residual stream. The last
            layer returns only the step's `wanted_rows`.
        """


@dataclass(frozen=True, slots=True)
class Decoder:
    """One rank's part of a model."""

    embedding: VocabParallelEmbedding
    layers: Sequence[Layer]
    norm: Callable[[torch.Tensor], torch.Tensor]
    head: VocabParallelHead

    def forward(self, input_ids: torch.Tensor, cache: KvCache, step: StepAttention) -> torch.Tensor:
        """Compute hidden states before the final norm, of the step's `wanted_rows`.

        input_ids: [num_rows], int64 -> [num_wanted, hidden].
        cache: its number of layers is the number to compute. For measurements, it has fewer than the model.
        """
        x, residual = self.embedding(input_ids, step.positions), None
        for layer in self.layers[: len(cache.layers)]:
            x, residual = layer(x, residual, cache, step)
        return x if residual is None else residual + x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Compute logits. hidden: [num_rows, hidden] -> [num_rows, vocab_size] on rank 0, None on other ranks."""
        return self.head(self.norm(hidden))

    @property
    def largest_logits(self) -> LargestLogits | None:
        return None if self.head.logit_bounds is None else lambda hidden: self.head.largest(self.norm(hidden))


def build_decoder(parts: Parts) -> Decoder:
    """Build this rank's part of the model that `parts.config` describes.

    Raises:
        BadCheckpoint: the weights do not match the configuration.
    """
    config = parts.config
    embedding, head = make.vocabulary(parts)
    layer = ParallelLayer if config.parallel_block else SequentialLayer
    layers = [layer(parts, index) for index in range(config.num_layers)]
    return Decoder(embedding, layers, parts.norm(parts.prefix + config.names.last_norm), head)
