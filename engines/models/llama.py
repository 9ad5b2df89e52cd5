"""Llama 1 to 3 (Touvron et al. 2023, arXiv:2302.13971), Mistral, Mixtral, Qwen2 and
Qwen3.

They differ in their configuration only (`config/llama.py`).

Each rank owns whole groups of query heads with their KV head, a share of the MLP's middle, and a share of the
vocabulary. Each layer has two sums over ranks.
"""

from __future__ import annotations

from functools import partial

import torch

import lmi_kernels
from engines.kv_cache import KvCache
from engines.layers.over_ranks import sum_over_ranks
from engines.layers.step_attention import StepAttention
from engines.models import blocks
from engines.models.blocks import Parts
from engines.models.decoder import Decoder


def llama(parts: Parts) -> Decoder:
    embedding, head = blocks.vocabulary(parts, "model.embed_tokens.weight", "lm_head.weight")
    layers = [_LlamaLayer(parts, index) for index in range(parts.config.num_layers)]
    norm = parts.weights.whole("model.norm.weight", (parts.config.hidden_size,))
    last_norm = partial(lmi_kernels.rms_norm, weight=norm, eps=parts.config.norm_eps)
    return Decoder(embedding, layers, last_norm, head)


class _LlamaLayer:
    def __init__(self, parts: Parts, index: int) -> None:
        prefix, shape = f"model.layers.{index}", (parts.config.hidden_size,)
        self._eps = parts.config.norm_eps
        self._comm = parts.comm
        self._input_norm = parts.weights.whole(f"{prefix}.input_layernorm.weight", shape)
        self._post_norm = parts.weights.whole(f"{prefix}.post_attention_layernorm.weight", shape)
        self._attention = blocks.attention(parts, index, f"{prefix}.self_attn")
        make_mlp = blocks.gated_mlp if parts.config.experts is None else blocks.moe_mlp
        self._mlp = make_mlp(parts, prefix)

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, cache: KvCache, step: StepAttention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `decoder.Layer`."""
        if residual is None:
            residual, x = x, lmi_kernels.rms_norm(x, self._input_norm, self._eps)
        else:
            x, residual = lmi_kernels.add_rms_norm(x, residual, self._input_norm, self._eps)
        x = sum_over_ranks(self._attention(x, cache, step), self._comm)
        x, residual = lmi_kernels.add_rms_norm(x, residual, self._post_norm, self._eps)
        return sum_over_ranks(self._mlp(x, step.slot_mapping), self._comm), residual
