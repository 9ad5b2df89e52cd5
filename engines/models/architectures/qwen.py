"""Qwen 2, 2.5 and 3, and Qwen 3 with experts (Yang et al. 2025, arXiv:2505.09388)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engines.models.architectures import llama
from engines.models.config.description import ExpertsConfig, ModelConfig
from engines.models.config.fields import Fields, UnsupportedModel


def read_qwen2(fields: Fields) -> ModelConfig:
    """Read a Qwen2 or Qwen2.5 config: Llama with qkv biases."""
    return _read(fields, qkv_bias=True, output_bias=False)


def read_qwen3(fields: Fields) -> ModelConfig:
    """Read a Qwen3 config: Llama with RMSNorms of query and key heads."""
    return _with_norms(_read(fields, head_dim=128))


def read_qwen3_moe(fields: Fields) -> ModelConfig:
    """Read a Qwen3 MoE config: Qwen3 with experts in every `decoder_sparse_step`-th layer except `mlp_only_layers`.

    `use_sliding_window` applies to all layers.
    """
    config = _with_norms(_read(fields.with_defaults(num_key_value_heads=4)))
    used = fields.flag("use_sliding_window", False)
    window = fields.count_or_none("sliding_window", 4096) if used else None
    config = llama.with_windows(config, [window] * config.num_layers)
    # transformers 5 writes num_local_experts.
    count = fields.count("num_experts", fields.count("num_local_experts", 128))
    top_k = fields.count("num_experts_per_tok", 8)
    if top_k > count:
        raise UnsupportedModel(f"num_experts_per_tok is {top_k}; there are only {count} experts")
    step, dense = fields.count("decoder_sparse_step", 1), set(fields.numbers("mlp_only_layers"))
    experts = ExpertsConfig(
        count,
        top_k,
        fields.count("moe_intermediate_size", 768),
        "mlp.gate",
        "mlp.experts.{}",
        ("gate_proj", "up_proj", "down_proj"),
        fields.flag("norm_topk_prob", False),
        frozenset(i for i in range(config.num_layers) if i in dense or (i + 1) % step),
    )
    return replace(config, experts=experts)


def _with_norms(config: ModelConfig) -> ModelConfig:
    specs = tuple(replace(spec, query_key_norms=True) for spec in config.attention)
    return replace(config, attention=specs)


def _read(fields: Fields, head_dim: int | None = None, **changes: Any) -> ModelConfig:
    """Read a Qwen config. `use_sliding_window`, off by default, applies to the layers that `layer_types` names; without
    `layer_types` it applies to the layers from `max_window_layers` on."""
    fields = fields.with_defaults(num_key_value_heads=32)
    config = llama.read(fields, head_dim, mlp_bias=False, **changes)
    window = fields.count_or_none("sliding_window", 4096)
    first = fields.count("max_window_layers", 28, minimum=0)
    default = ["sliding_attention" if i >= first else "full_attention" for i in range(config.num_layers)]
    types = fields.layer_types(default)
    if not fields.flag("use_sliding_window", False):
        return config
    return llama.with_windows(config, [window if kind == "sliding_attention" else None for kind in types])
