"""GPT-2 (Radford et al. 2019, Language Models are Unsupervised Multitask Learners)."""

from __future__ import annotations

from engines.models.config.activation import activation
from engines.models.config.attention import AttentionSpec
from engines.models.config.description import ModelConfig, NormSpec, PositionTable
from engines.models.config.fields import Fields
from engines.models.config.weight_names import WeightNames

_NAMES = WeightNames(
    prefix="transformer.",
    embedding="wte",
    last_norm="ln_f",
    layer="h.{}.",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    qkv=("attn.c_attn",),
    attention_output="attn.c_proj",
    mlp_inputs=("mlp.c_fc",),
    mlp_output="mlp.c_proj",
)


def read(fields: Fields) -> ModelConfig:
    """Read a GPT-2 config. Defaults are those of transformers' `GPT2Config`."""
    # As in transformers, common names come before GPT-2's own.
    hidden_size = fields.count("hidden_size", fields.count("n_embd", 768))
    heads = fields.count("num_attention_heads", fields.count("n_head", 12))
    num_layers = fields.count("num_hidden_layers", fields.count("n_layer", 12))
    num_positions = fields.count("max_position_embeddings", fields.count("n_positions", 1024))
    head_dim = fields.head_dim(hidden_size, heads)
    scale = head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", False)
    return ModelConfig(
        architecture=fields.architecture,
        vocab_size=fields.count("vocab_size", 50257),
        hidden_size=hidden_size,
        intermediate_size=fields.count("n_inner", 4 * hidden_size),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=num_positions,
        norm=NormSpec(fields.positive("layer_norm_epsilon", 1e-5), is_layer_norm=True, biased=True),
        attention=tuple(AttentionSpec(scale / (i + 1 if by_layer else 1), None) for i in range(num_layers)),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        dtype=fields.dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
        names=_NAMES,
        transposed=True,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        activation=activation(fields, "activation_function", "gelu_new"),
        gated_mlp=False,
        position_table=PositionTable("wpe", num_positions),
    )
