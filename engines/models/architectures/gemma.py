"""Gemma 1, 2 (arXiv:2408.00118) and the text models of Gemma 3 (arXiv:2503.19786)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engines.models.architectures import llama
from engines.models.config.activation import activation
from engines.models.config.description import ModelConfig, NormSpec
from engines.models.config.fields import Fields, UnsupportedModel
from engines.models.config.weight_names import WeightNames

_NORMS = WeightNames(
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
)
_SLIDING = "sliding_attention"


def read(fields: Fields) -> ModelConfig:
    """Read a Gemma 1 config. The first published files say `gelu` but mean its tanh approximation."""
    kind = activation(fields, "hidden_act", "gelu_pytorch_tanh")
    fields = fields.with_defaults(num_key_value_heads=16)
    return _read(fields, activation="gelu_tanh" if kind == "gelu" else kind)


def read_gemma2(fields: Fields) -> ModelConfig:
    """Read a Gemma 2 config. Every other layer has a sliding window, and scores and logits have soft caps."""
    fields = fields.with_defaults(attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    return _with_windows(fields, pattern=2)


def read_gemma3(fields: Fields) -> ModelConfig:
    """Read a Gemma 3 config. Five of six layers have a sliding window and a separate rotary embedding.

    `attn_logit_softcapping` has no effect, as in transformers.
    """
    if fields.flag("use_bidirectional_attention", False):
        raise UnsupportedModel("use_bidirectional_attention is true; required for text generation: false")
    fields = fields.with_defaults(rope_theta=1e6)
    config = _with_windows(fields, fields.count("sliding_window_pattern", 6), layer_type="full_attention")
    near = fields.rotary(config.head_dim, _SLIDING)
    specs = [
        replace(spec, query_key_norms=True, softcap=None, rotary=near if spec.window else spec.rotary)
        for spec in config.attention
    ]
    return replace(config, attention=tuple(specs))


def _read(fields: Fields, **changes: Any) -> ModelConfig:
    """Read a Llama config with scaled embeddings and an offset of 1 for norm weights."""
    return llama.read(
        fields,
        head_dim=256,
        norm=NormSpec(fields.positive("rms_norm_eps", 1e-6), offset=1.0),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        embedding_scale=fields.count("hidden_size") ** 0.5,
        mlp_bias=False,
        **changes,
    )


def _with_windows(fields: Fields, pattern: int, **changes: Any) -> ModelConfig:
    """Read a config with sliding windows. pattern: every `pattern`-th layer attends to all tokens."""
    fields = fields.with_defaults(num_key_value_heads=4)
    config = _read(
        fields,
        names=_NORMS,
        activation=activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        logit_softcap=fields.positive_or_none("final_logit_softcapping"),
        **changes,
    )
    scale = fields.positive("query_pre_attn_scalar", 256) ** -0.5
    window, softcap = fields.count("sliding_window", 4096), fields.positive_or_none("attn_logit_softcapping")
    default = [_SLIDING if (i + 1) % pattern else "full_attention" for i in range(config.num_layers)]
    types = fields.layer_types(default)
    specs = [
        replace(spec, scale=scale, softcap=softcap, window=window if kind == _SLIDING else None)
        for spec, kind in zip(config.attention, types, strict=True)
    ]
    return replace(config, attention=tuple(specs))
