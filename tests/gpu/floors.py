"""Floors: the minimum time of given work. It is max(bytes / copy bandwidth, operations / matmul rate) of attention,
plus the same of the matrix products.

Bytes: weights, read once (embeddings are a lookup), and the keys and values of every sequence. Operations: two per
weight and token, and four per query element and key. After its attention, the last layer computes only the tokens whose
logits are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.models.config import ModelConfig

_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Ceilings of the device, measured in this process."""

    copy: float
    """Bytes per second, read and written."""
    matmul: float
    """Operations per second, bf16 on random data."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Work of one kind, bound by memory or by arithmetic."""

    bytes: float
    operations: float

    def floor(self, ceilings: Ceilings) -> float:
        """Return the minimum time in seconds."""
        return max(self.bytes / ceilings.copy, self.operations / ceilings.matmul)


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a step. Each phase needs the results of the other, so they cannot overlap."""

    attention: Phase
    products: Phase

    @property
    def operations(self) -> float:
        return self.attention.operations + self.products.operations

    def floor(self, ceilings: Ceilings) -> float:
        """Return the minimum time in seconds."""
        return self.attention.floor(ceilings) + self.products.floor(ceilings)


def decode_work(config: ModelConfig, num_seqs: int, context: int) -> Work:
    """Return the work of a step with one token per sequence. context: number of keys of all sequences."""
    return mixed_work(config, num_seqs, context, 0)


def mixed_work(config: ModelConfig, num_seqs: int, context: int, chunk: int) -> Work:
    """Return the work of a step with one token per sequence, and the first chunk of another prompt, without logits."""
    tokens = num_seqs + chunk
    weights = _layers(config, _touched_experts(config, tokens)) + _head(config)
    computed = _operations(config, tokens, num_seqs)
    keys, pairs = (
        _ELEMENT_BYTES * config.kv_bytes_per_token("fp32", 1) // 4 * context,
        chunk * (chunk + 1) / 2,
    )
    return Work(Phase(keys, _attention(config, context + pairs)), Phase(_ELEMENT_BYTES * weights, computed))


def prefill_work(config: ModelConfig, num_tokens: int) -> Work:
    """Return the work of a whole prompt in one step, with logits of its last token."""
    work = mixed_work(config, 0, 0, num_tokens)
    return Work(work.attention, Phase(work.products.bytes, _operations(config, num_tokens, 1)))


def product_work(num_rows: int, outputs: int, inputs: int) -> Phase:
    """Return the work of a matrix product. Weights, inputs and outputs are each moved once."""
    moved = outputs * inputs + num_rows * (outputs + inputs)
    return Phase(_ELEMENT_BYTES * moved, 2.0 * num_rows * outputs * inputs)


def trace_floor(
    config: ModelConfig, prompts: Sequence[int], outputs: Sequence[int], ceilings: Ceilings
) -> float:
    """Return the minimum seconds of a trace whose requests arrive at once and run as one batch: prompts at the matmul
    rate, one after the other, then decode steps of all sequences that are not finished."""
    computed = sum(_operations(config, n, 1) + _attention(config, n * (n + 1) / 2) for n in prompts)
    seconds = computed / ceilings.matmul
    for step in range(1, max(outputs)):
        contexts = [length + step for length, count in zip(prompts, outputs, strict=True) if count > step]
        seconds += decode_work(config, len(contexts), sum(contexts)).floor(ceilings)
    return seconds


def causal_attention_operations(num_heads: int, head_dim: int, num_tokens: int) -> float:
    """Return the operations of one layer and one sequence, without the masked half."""
    return 4 * num_heads * head_dim * num_tokens * num_tokens / 2


def _attention(config: ModelConfig, pairs: float) -> float:
    """Return the operations of all layers. pairs: pairs of query and key, over all sequences."""
    return 4.0 * pairs * config.num_heads * config.head_dim * config.num_layers


def _operations(config: ModelConfig, num_tokens: int, num_logits: int) -> float:
    """Return the operations of the products for tokens, of which some need logits."""
    chosen = _chosen_experts(config)
    not_needed = _after_attention(config, chosen) * (num_tokens - num_logits)
    return 2 * (_layers(config, chosen) * num_tokens - not_needed + _head(config) * num_logits)


def _layers(config: ModelConfig, experts: float) -> float:
    """Return the number of weights of all layers, each with this many experts (1 for a dense model)."""
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim * config.hidden_size
    return config.num_layers * (qkv + _after_attention(config, experts))


def _after_attention(config: ModelConfig, experts: float) -> float:
    """Return the number of a layer's weights after its attention."""
    mlp = (3 if config.gated_mlp else 2) * config.intermediate_size
    return config.hidden_size * (config.num_heads * config.head_dim + mlp * experts)


def _head(config: ModelConfig) -> float:
    return config.vocab_size * config.hidden_size


def _chosen_experts(config: ModelConfig) -> float:
    return config.experts.top_k if config.experts else 1


def _touched_experts(config: ModelConfig, num_tokens: int) -> float:
    """Return the mean number of a layer's experts that tokens choose. Random weights choose uniformly."""
    if config.experts is None:
        return 1
    count, chosen = config.experts.num_experts, config.experts.top_k
    return count * (1 - (1 - chosen / count) ** num_tokens)
