"""Llama 1 to 3 (Touvron et al. 2023, arXiv:2302.13971), Mistral, Ministral and Mixtral. Most architectures share
Llama's field names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from engines.models.config.activation import activation
from engines.models.config.attention import AttentionSpec
from engines.models.config.description import ExpertsConfig, ModelConfig, NormSpec
from engines.models.config.fields import Fields, UnsupportedModel


def read(
    fields: Fields,
    head_dim: int | None = None,
    layer_type: str | None = None,
    partial_rotary: bool = False,
    **changes: Any,
) -> ModelConfig:
    """Read the fields of Llama.

    Args:
        head_dim: default for a missing `head_dim`; None: hidden_size / heads.
        layer_type: see `Fields.rotary`.
        partial_rotary: whether the architecture can rotate a part of each head.
        changes: fields of `ModelConfig` that another architecture overrides.
    """
    hidden_size, num_layers = fields.count("hidden_size"), fields.count("num_hidden_layers")
    heads, kv_heads = fields.heads("num_key_value_heads")
    head_dim = fields.count("head_dim", head_dim or hidden_size // heads)
    rotated = fields.rotated_features(head_dim, 1.0)
    if rotated != head_dim and not partial_rotary:
        raise UnsupportedModel(
            f"partial_rotary_factor is set, which {fields.architecture} does not have; required: 1"
        )
    rotary = fields.rotary(rotated, layer_type)
    context = fields.count("max_position_embeddings", fields.count_or_none("max_sequence_length"))
    biased = fields.flag("attention_bias", False)
    config = ModelConfig(
        architecture=fields.architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=context,
        norm=NormSpec(fields.positive("rms_norm_eps", 1e-6)),
        attention=(AttentionSpec(head_dim**-0.5, rotary),) * num_layers,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        dtype=fields.dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=fields.flag("mlp_bias", False),
        activation=activation(fields, "hidden_act", "silu"),
    )
    return replace(config, **changes)


def read_mistral(fields: Fields) -> ModelConfig:
    """Read a Mistral or Ministral config: Llama without biases.

    All layers have a sliding window, or those that `layer_types` names. There is none if `sliding_window` is null.
    """
    window = fields.count_or_none("sliding_window", 4096)
    config = _read_mistral(fields, window)
    types = fields.layer_types(["sliding_attention"] * config.num_layers)
    return with_windows(config, [window if kind == "sliding_attention" else None for kind in types])


def read_mixtral(fields: Fields) -> ModelConfig:
    """Read a Mixtral config: Mistral with experts. Defaults are those of transformers' `MixtralConfig`."""
    fields = fields.with_defaults(rope_theta=1e6, rms_norm_eps=1e-5)
    count, top_k = fields.count("num_local_experts", 8), fields.count("num_experts_per_tok", 2)
    if top_k > count:
        raise UnsupportedModel(f"num_experts_per_tok is {top_k}; there are only {count} experts")
    config = _read_mistral(fields, fields.count_or_none("sliding_window"))
    return replace(config, experts=ExpertsConfig(count, top_k, config.intermediate_size))


def _read_mistral(fields: Fields, window: int | None) -> ModelConfig:
    fields = fields.with_defaults(num_key_value_heads=8)
    config = read(fields, qkv_bias=False, output_bias=False, mlp_bias=False)
    return with_windows(config, [window] * config.num_layers)


def with_windows(config: ModelConfig, windows: Iterable[int | None]) -> ModelConfig:
    """Return the config with these windows. windows: one for each layer; None: all tokens."""
    specs = zip(config.attention, windows, strict=True)
    return replace(config, attention=tuple(replace(spec, window=window) for spec, window in specs))
