"""Llama (Touvron et al. 2023, arXiv:2302.13971; Llama 2 and 3 alike), tensor-parallel by construction.

Each rank owns whole groups of query heads with their KV head, a share of the MLP's middle, and a share of the
vocabulary. Two sums a layer.
"""

from __future__ import annotations

import torch

import lmi_kernels
from engines.kv_cache import KvCache
from engines.layers.attention import Attention
from engines.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engines.layers.linear import Linear, RowParallelLinear
from engines.layers.step_attention import Heads, StepAttention
from engines.models.config import ModelConfig
from engines.models.weights import WeightReader
from engines.parallel import Communicator
from engines.partition import Shard, split_evenly
from engines.stopwatch import Stopwatch


class Llama:
    """One rank's part of a Llama model."""

    def __init__(
        self, config: ModelConfig, weights: WeightReader, comm: Communicator, stopwatch: Stopwatch
    ) -> None:
        """Reads this rank's weights.

        Raises:
            BadCheckpoint: the files do not hold what the configuration says.
        """
        self._eps = config.rms_norm_eps
        vocabulary = split_evenly(config.vocab_size, comm.world_size, comm.rank)
        shape = (config.vocab_size, config.hidden_size)
        embedding = weights.rows(["model.embed_tokens.weight"], [vocabulary], shape)
        self._embedding = VocabParallelEmbedding(embedding, vocabulary, comm)
        self._layers = [_Layer(i, config, weights, comm, stopwatch) for i in range(config.num_layers)]
        self._norm = weights.whole("model.norm.weight", (config.hidden_size,))
        head = (
            embedding if config.tie_word_embeddings else weights.rows(["lm_head.weight"], [vocabulary], shape)
        )
        self._head = VocabParallelHead(head, config.vocab_size, comm)

    @staticmethod
    def num_kv_heads(config: ModelConfig, world_size: int, rank: int) -> int:
        """KV heads of one rank: whole groups, dealt out as evenly as possible."""
        return split_evenly(config.num_kv_heads, world_size, rank).size

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
        return self._head(lmi_kernels.rms_norm(hidden, self._norm, self._eps))


class _Layer:
    def __init__(
        self, index: int, config: ModelConfig, weights: WeightReader, comm: Communicator, stopwatch: Stopwatch
    ) -> None:
        prefix = f"model.layers.{index}"
        self._eps = config.rms_norm_eps
        self._input_norm = weights.whole(f"{prefix}.input_layernorm.weight", (config.hidden_size,))
        self._post_norm = weights.whole(f"{prefix}.post_attention_layernorm.weight", (config.hidden_size,))
        self._attention = _attention(index, f"{prefix}.self_attn", config, weights, comm, stopwatch)
        self._gate_up, self._down = _mlp(f"{prefix}.mlp", config, weights, comm)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, cache: KvCache, step: StepAttention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x: what the layer before (or, with no residual, the embedding) adds to the residual stream.

        Returns: what this layer's MLP adds, and the stream before it.
        """
        if residual is None:
            residual, x = x, lmi_kernels.rms_norm(x, self._input_norm, self._eps)
        else:
            x, residual = lmi_kernels.add_rms_norm(x, residual, self._input_norm, self._eps)
        x = self._attention(x, cache, step)
        x, residual = lmi_kernels.add_rms_norm(x, residual, self._post_norm, self._eps)
        return self._down(lmi_kernels.silu_and_mul(self._gate_up(x))), residual


def _attention(
    index: int,
    prefix: str,
    config: ModelConfig,
    weights: WeightReader,
    comm: Communicator,
    stopwatch: Stopwatch,
) -> Attention:
    groups = split_evenly(config.num_kv_heads, comm.world_size, comm.rank)
    kv_rows = groups.scaled(config.head_dim)
    q_rows = kv_rows.scaled(config.num_heads // config.num_kv_heads)
    names = [f"{prefix}.{part}_proj" for part in "qkv"]
    shards = [q_rows, kv_rows, kv_rows]
    qkv_shape = ((config.num_heads + 2 * config.num_kv_heads) * config.head_dim, config.hidden_size)
    qkv = _fused(names, shards, qkv_shape, config.attention_bias, weights)
    shape = (config.hidden_size, config.num_heads * config.head_dim)
    output = weights.columns(f"{prefix}.o_proj.weight", q_rows, shape)
    bias = weights.whole(f"{prefix}.o_proj.bias", (config.hidden_size,)) if config.attention_bias else None
    heads = Heads(q_rows.size // config.head_dim, groups.size, config.head_dim)
    return Attention(index, qkv, RowParallelLinear(output, bias, comm), heads, stopwatch)


def _mlp(
    prefix: str, config: ModelConfig, weights: WeightReader, comm: Communicator
) -> tuple[Linear, RowParallelLinear]:
    middle = split_evenly(config.intermediate_size, comm.world_size, comm.rank)
    names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
    gate_up_shape = (2 * config.intermediate_size, config.hidden_size)
    gate_up = _fused(names, [middle, middle], gate_up_shape, config.mlp_bias, weights)
    down = weights.columns(
        f"{prefix}.down_proj.weight", middle, (config.hidden_size, config.intermediate_size)
    )
    bias = weights.whole(f"{prefix}.down_proj.bias", (config.hidden_size,)) if config.mlp_bias else None
    return gate_up, RowParallelLinear(down, bias, comm)


def _fused(
    names: list[str], shards: list[Shard], shape: tuple[int, int], biased: bool, weights: WeightReader
) -> Linear:
    """Several projections of the same input as one, of `shape` over all ranks."""
    weight = weights.rows([f"{name}.weight" for name in names], shards, shape)
    bias = weights.rows([f"{name}.bias" for name in names], shards, shape[:1]) if biased else None
    return Linear(weight, bias)
