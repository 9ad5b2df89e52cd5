"""The least time that work can take: max(bytes / copy bandwidth, operations / matmul rate), for attention and for the
matrix products each, one after the other.

Bytes: weights read once (embeddings are a lookup) and the keys and values of every sequence. Operations: two for each
weight and token, and four for each query element and key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured in this process."""

    copy: float
    """Bytes a second, read and written."""
    matmul: float
    """Operations a second, bf16 on random data."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Work of one kind, in which the device is held up by memory or by arithmetic."""

    bytes: float
    operations: float

    def floor(self, ceilings: Ceilings) -> float:
        """Seconds."""
        return max(self.bytes / ceilings.copy, self.operations / ceilings.matmul)


@dataclass(frozen=True, slots=True)
class Work:
    """A step's. One phase needs the other's results: neither can hide behind it."""

    attention: Phase
    products: Phase

    @property
    def operations(self) -> float:
        return self.attention.operations + self.products.operations

    def floor(self, ceilings: Ceilings) -> float:
        """Seconds."""
        return self.attention.floor(ceilings) + self.products.floor(ceilings)


def decode_work(config: ModelConfig, num_seqs: int, context: int, element: int = 2) -> Work:
    """A step of one token for each sequence; context: keys of all sequences together."""
    return mixed_work(config, num_seqs, context, 0, element)


def mixed_work(config: ModelConfig, num_seqs: int, context: int, chunk: int, element: int = 2) -> Work:
    """A step of one token for each sequence, and a chunk of one more, the first of its prompt, without logits."""
    tokens = num_seqs + chunk
    weights = _layers(config, _touched_experts(config, tokens)) + _head(config)
    computed = 2 * _layers(config, _chosen_experts(config)) * tokens + 2 * _head(config) * num_seqs
    keys, pairs = element * config.kv_elements_per_token * context, chunk * (chunk + 1) / 2
    return Work(
        Phase(keys, _attention(config, context + pairs)),
        Phase(element * weights, computed),
    )


def prefill_work(config: ModelConfig, num_tokens: int, element: int = 2) -> Work:
    """A prompt alone, computed at once; logits of its last token."""
    weights = _layers(config, _touched_experts(config, num_tokens)) + _head(config)
    computed = 2 * _layers(config, _chosen_experts(config)) * num_tokens + 2 * _head(config)
    pairs = num_tokens * (num_tokens + 1) / 2
    return Work(Phase(0.0, _attention(config, pairs)), Phase(element * weights, computed))


def product_work(num_rows: int, outputs: int, inputs: int, element: int = 2) -> Phase:
    """A matrix product of so many rows: weights, rows and results, each once."""
    moved = outputs * inputs + num_rows * (outputs + inputs)
    return Phase(element * moved, 2.0 * num_rows * outputs * inputs)


def trace_floor(
    config: ModelConfig, prompts: Sequence[int], outputs: Sequence[int], ceilings: Ceilings
) -> float:
    """Seconds of a trace that is all there at once and runs as one batch: prompts at the matmul rate, one after the
    other, then steps of all sequences that are not done."""
    layers = 2 * _layers(config, _chosen_experts(config))
    computed = sum(layers * n + _attention(config, n * (n + 1) / 2) for n in prompts)
    seconds = computed / ceilings.matmul
    for step in range(1, max(outputs)):
        contexts = [length + step for length, count in zip(prompts, outputs, strict=True) if count > step]
        seconds += decode_work(config, len(contexts), sum(contexts)).floor(ceilings)
    return seconds


def causal_attention_operations(num_heads: int, head_dim: int, num_tokens: int) -> float:
    """Of one layer and one sequence; the masked half not counted."""
    return 4 * num_heads * head_dim * num_tokens * num_tokens / 2


def _attention(config: ModelConfig, pairs: float) -> float:
    """pairs: of query and key, over all sequences; of all layers."""
    return 4.0 * pairs * config.num_heads * config.head_dim * config.num_layers


def _layers(config: ModelConfig, experts: float) -> float:
    """Weights of all layers, each with so many of its experts (1 where there are none)."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    attention = (heads + 2 * config.num_kv_heads * config.head_dim) * hidden + heads * hidden
    mlp = (3 if config.gated_mlp else 2) * hidden * config.intermediate_size
    return config.num_layers * (attention + mlp * experts)


def _head(config: ModelConfig) -> float:
    return config.vocab_size * config.hidden_size


def _chosen_experts(config: ModelConfig) -> float:
    return config.experts.top_k if config.experts else 1


def _touched_experts(config: ModelConfig, num_tokens: int) -> float:
    """Of a layer, by at least one of the tokens; random weights choose evenly."""
    if config.experts is None:
        return 1
    count, chosen = config.experts.num_experts, config.experts.top_k
    return count * (1 - (1 - chosen / count) ** num_tokens)
