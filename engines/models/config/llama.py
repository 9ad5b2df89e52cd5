"""config.json of Llama, whose names most others have taken over, and of Mistral, which is a Llama with a window."""

from __future__ import annotations

from dataclasses import replace

from engines.models.config.description import ModelConfig
from engines.models.config.fields import Fields, require_even


def read(fields: Fields) -> ModelConfig:
    fields.one_of("hidden_act", "silu", ("silu",))
    hidden_size = fields.count("hidden_size")
    heads, kv_heads = fields.heads("num_key_value_heads")
    return ModelConfig(
        architecture=fields.architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=fields.count("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=require_even(fields.count("head_dim", hidden_size // heads)),
        max_position_embeddings=fields.count("max_position_embeddings"),
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope_theta=fields.rope_theta,
        rope_scaling=fields.rope_scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        dtype=fields.dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
    )


def read_windowed(fields: Fields) -> ModelConfig:
    """All layers look back through `sliding_window` (null: none), and no projection has a bias."""
    config = replace(read(fields), attention_bias=False, mlp_bias=False)
    return within_window(config, fields.optional_count("sliding_window"))


def within_window(config: ModelConfig, window: int | None) -> ModelConfig:
    """No longer sequences than what a window shows whole: see `ModelConfig.max_position_embeddings`."""
    if window is None:
        return config
    return replace(config, max_position_embeddings=min(config.max_position_embeddings, window))
