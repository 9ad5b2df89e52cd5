"""MPT (MosaicML 2023, Introducing MPT-7B), with ALiBi and without biases."""

from __future__ import annotations

from engines.models.config.alibi import alibi_slopes
from engines.models.config.attention import AttentionSpec
from engines.models.config.description import ModelConfig, NormSpec
from engines.models.config.fields import Fields, UnsupportedModel
from engines.models.config.weight_names import WeightNames

_NAMES = WeightNames(
    prefix="transformer.",
    embedding="wte",
    last_norm="norm_f",
    layer="blocks.{}.",
    attention_norm="norm_1",
    mlp_norm="norm_2",
    qkv=("attn.Wqkv",),
    attention_output="attn.out_proj",
    mlp_inputs=("ffn.up_proj",),
    mlp_output="ffn.down_proj",
)


def read(fields: Fields) -> ModelConfig:
    """Read an MPT config. Defaults are those of transformers' `MptConfig`. It needs ALiBi and no biases."""
    attention = fields.part("attn_config")
    attention.one_of("attn_type", "multihead_attention", ("multihead_attention",))
    for name in ("clip_qkv", "qk_ln", "prefix_lm"):
        if attention.is_set(name):
            raise UnsupportedModel(f"attn_config.{name} is set; supported: models without it")
    for name, value in (
        ("attn_config.alibi", attention.flag("alibi", True)),
        ("no_bias", fields.flag("no_bias", True)),
    ):
        if not value:
            raise UnsupportedModel(f"{name} is false; supported: true")
    if attention.count("alibi_bias_max", 8) != 8:
        raise UnsupportedModel(
            "attn_config.alibi_bias_max is set; supported: 8, the only value in transformers"
        )
    # As in transformers, common names come before MPT's own.
    hidden_size = fields.count("hidden_size", fields.count("d_model", 2048))
    heads = fields.count("num_attention_heads", fields.count("n_heads", 16))
    num_layers = fields.count("num_hidden_layers", fields.count("n_layers", 24))
    head_dim = fields.head_dim(hidden_size, heads)
    scale = attention.positive_or_none("softmax_scale") or head_dim**-0.5
    slopes = alibi_slopes(heads)
    return ModelConfig(
        architecture=fields.architecture,
        vocab_size=fields.count("vocab_size", 50368),
        hidden_size=hidden_size,
        intermediate_size=fields.count("expansion_ratio", 4) * hidden_size,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=fields.count("max_seq_len", 2048),
        norm=NormSpec(fields.positive("layer_norm_epsilon", 1e-5), is_layer_norm=True),
        attention=(AttentionSpec(scale, None, alibi_slopes=slopes),) * num_layers,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        dtype=fields.dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
        names=_NAMES,
        activation="gelu",
        gated_mlp=False,
    )
