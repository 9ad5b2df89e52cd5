"""config.json of Llama, whose field names most architectures use, and of those that differ in a field or two."""

from __future__ import annotations

from dataclasses import replace

from engines.models.config.attention import AttentionSpec
from engines.models.config.description import ExpertsConfig, ModelConfig
from engines.models.config.fields import Fields, UnsupportedModel

_QWEN3_HEAD_DIM = 128


def read(fields: Fields, head_dim: int | None = None, query_key_norms: bool = False) -> ModelConfig:
    """Llama. head_dim: the default; None: hidden_size / heads."""
    fields.one_of("hidden_act", "silu", ("silu",))
    hidden_size, num_layers = fields.count("hidden_size"), fields.count("num_hidden_layers")
    heads, kv_heads = fields.heads("num_key_value_heads")
    head_dim = fields.count("head_dim", head_dim or hidden_size // heads)
    spec = AttentionSpec(head_dim**-0.5, fields.rotary(head_dim), query_key_norms)
    return ModelConfig(
        architecture=fields.architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=fields.count("max_position_embeddings"),
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        attention=(spec,) * num_layers,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=fields.flag("attention_bias", False),
        output_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        dtype=fields.dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def read_mistral(fields: Fields) -> ModelConfig:
    """Llama without biases; all layers have a sliding window, unless it is null."""
    return _within_window(replace(read(fields), qkv_bias=False, output_bias=False, mlp_bias=False), fields)


def read_mixtral(fields: Fields) -> ModelConfig:
    """Mistral with experts."""
    experts, top_k = fields.count("num_local_experts", 8), fields.count("num_experts_per_tok", 2)
    if top_k > experts:
        raise UnsupportedModel(f"num_experts_per_tok is {top_k}; there are only {experts} experts")
    return replace(read_mistral(fields), experts=ExpertsConfig(experts, top_k))


def read_qwen2(fields: Fields) -> ModelConfig:
    """Qwen2 and Qwen2.5: Llama with a bias of queries, keys and values. A sliding window is mostly off."""
    config = replace(read(fields), qkv_bias=True, output_bias=False, mlp_bias=False)
    return _within_window(config, fields) if fields.flag("use_sliding_window", False) else config


def read_qwen3(fields: Fields) -> ModelConfig:
    """Llama with norms of query and key heads, and a sliding window for some layers, which is mostly off."""
    config = replace(read(fields, _QWEN3_HEAD_DIM, query_key_norms=True), mlp_bias=False)
    return _within_window(config, fields) if fields.flag("use_sliding_window", False) else config


def _within_window(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Limit sequences to the window: see `ModelConfig.max_position_embeddings`."""
    window = fields.count("sliding_window", config.max_position_embeddings)
    return replace(config, max_position_embeddings=min(config.max_position_embeddings, window))
