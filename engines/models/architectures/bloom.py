"""BLOOM (Le Scao et al. 2022, arXiv:2211.05100), with ALiBi and a LayerNorm after the embedding."""

from __future__ import annotations

from engines.models.config.alibi import alibi_slopes
from engines.models.config.attention import AttentionSpec
from engines.models.config.description import ModelConfig, NormSpec
from engines.models.config.fields import Fields, UnsupportedModel
from engines.models.config.weight_names import WeightNames

_NAMES = WeightNames(
    prefix="transformer.",
    embedding="word_embeddings",
    embedding_norm="word_embeddings_layernorm",
    last_norm="ln_f",
    layer="h.{}.",
    qkv=("self_attention.query_key_value",),
    grouped_qkv=True,
    attention_output="self_attention.dense",
    mlp_inputs=("mlp.dense_h_to_4h",),
    mlp_output="mlp.dense_4h_to_h",
)
_TRAINED_LENGTH = 2048
"""Default context length. Only some files have it, as `seq_length`."""


def read(fields: Fields) -> ModelConfig:
    """Read a BLOOM config. Defaults are those of transformers' `BloomConfig`."""
    if fields.flag("apply_residual_connection_post_layernorm", False):
        raise UnsupportedModel("apply_residual_connection_post_layernorm is true; supported: false")
    if fields.flag("slow_but_exact", False) and fields.count("pretraining_tp", 1) > 1:
        raise UnsupportedModel("slow_but_exact is true; supported: false")
    hidden_size = fields.count("hidden_size", fields.count("n_embed", 64))
    # As in transformers, common names come before BLOOM's own.
    heads = fields.count("num_attention_heads", fields.count("n_head", 8))
    num_layers = fields.count("num_hidden_layers", fields.count("n_layer", 2))
    head_dim = fields.head_dim(hidden_size, heads)
    spec = AttentionSpec(head_dim**-0.5, None, alibi_slopes=alibi_slopes(heads))
    return ModelConfig(
        architecture=fields.architecture,
        vocab_size=fields.count("vocab_size", 250880),
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=fields.count("seq_length", _TRAINED_LENGTH),
        norm=NormSpec(fields.positive("layer_norm_epsilon", 1e-5), is_layer_norm=True, biased=True),
        attention=(spec,) * num_layers,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        dtype=fields.dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
        names=_NAMES,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        activation="gelu_tanh",
        gated_mlp=False,
    )
