"""Falcon 7B and 40B (Almazrouei et al. 2023, arXiv:2311.16867): attention and MLP in parallel, with one sum over ranks.

7B has one KV head for all query heads and one norm for both parts; 40B has groups of heads and two norms.
"""

from __future__ import annotations

import torch

import lmi_kernels
from engines.kv_cache import KvCache
from engines.layers.attention import SelfAttention
from engines.layers.mlp import GeluMlp
from engines.layers.over_ranks import sum_over_ranks
from engines.layers.step_attention import StepAttention
from engines.models import blocks
from engines.models.blocks import Parts
from engines.models.config import ModelConfig
from engines.models.decoder import Decoder
from engines.partition import HeadShare, Shard

Affine = tuple[torch.Tensor, torch.Tensor]
"""A LayerNorm's weight and bias, [hidden] each."""


def falcon(parts: Parts) -> Decoder:
    embedding, head = blocks.vocabulary(parts, "transformer.word_embeddings.weight", "lm_head.weight")
    layers = [_FalconLayer(parts, index) for index in range(parts.config.num_layers)]
    affine = _affine(parts, "transformer.ln_f")

    def last_norm(x: torch.Tensor) -> torch.Tensor:
        return lmi_kernels.layer_norms(x, [affine], parts.config.norm_eps)[0]

    return Decoder(embedding, layers, last_norm, head)


class _FalconLayer:
    def __init__(self, parts: Parts, index: int) -> None:
        prefix, config = f"transformer.h.{index}", parts.config
        block = config.parallel_block
        names = ("ln_attn", "ln_mlp") if block and block.num_norms == 2 else ("input_layernorm",)
        self._eps = config.norm_eps
        self._comm = parts.comm
        self._norms = [_affine(parts, f"{prefix}.{name}") for name in names]
        self._attention = _attention(parts, index, f"{prefix}.self_attention")
        self._mlp = _mlp(parts, f"{prefix}.mlp")

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, cache: KvCache, step: StepAttention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `decoder.Layer`."""
        if residual is None:
            residual, inputs = x, lmi_kernels.layer_norms(x, self._norms, self._eps)
        else:
            inputs, residual = lmi_kernels.add_layer_norms(x, residual, self._norms, self._eps)
        out = self._mlp(inputs[-1], step.slot_mapping)
        out += self._attention(inputs[0], cache, step)
        return sum_over_ranks(out, self._comm), residual


def _affine(parts: Parts, name: str) -> Affine:
    shape = (parts.config.hidden_size,)
    return parts.weights.whole(f"{name}.weight", shape), parts.weights.whole(f"{name}.bias", shape)


def _attention(parts: Parts, layer: int, prefix: str) -> SelfAttention:
    config, biased = parts.config, parts.config.qkv_bias
    rows = [piece.scaled(config.head_dim) for piece in _qkv_heads(config, parts.head_share)]
    name = f"{prefix}.query_key_value"
    shape = ((config.num_heads + 2 * config.num_kv_heads) * config.head_dim, config.hidden_size)
    qkv = parts.scattered_linear(name, rows, shape, biased)
    columns = parts.head_share.queries.scaled(config.head_dim)
    dense = parts.row_parallel(f"{prefix}.dense", columns, config.num_heads * config.head_dim, biased)
    return SelfAttention(layer, qkv, dense, parts.attention_rule(layer, prefix), parts.stopwatch)


def _qkv_heads(config: ModelConfig, mine: HeadShare) -> list[Shard]:
    """Return the places of this rank's query, key and value heads in the fused projection, counted in heads.

    The projection holds, for each KV head, the queries that see it, then its key and its value.
    """
    share = config.num_heads // config.num_kv_heads
    queries, keys_values = [], []
    for group in range(mine.keys_values.start, mine.keys_values.stop):
        first, shift = group * share, 2 * group
        start, stop = max(mine.queries.start, first), min(mine.queries.stop, first + share)
        queries.append(Shard(start + shift, stop + shift))
        keys_values.append(first + share + shift)
    keys = [Shard(at, at + 1) for at in keys_values]
    return [*queries, *keys, *[Shard(at + 1, at + 2) for at in keys_values]]


def _mlp(parts: Parts, prefix: str) -> GeluMlp:
    config, middle = parts.config, parts.middle
    shape = (config.intermediate_size, config.hidden_size)
    up = parts.fused_weight([f"{prefix}.dense_h_to_4h"], [middle], shape, config.mlp_bias)
    down = parts.row_parallel(f"{prefix}.dense_4h_to_h", middle, config.intermediate_size, config.mlp_bias)
    return GeluMlp(up, down)
