"""OPT (Zhang et al. 2022, arXiv:2205.01068), except the 350M model, which has post-layer norms."""

from __future__ import annotations

from engines.models.config.activation import activation
from engines.models.config.attention import AttentionSpec
from engines.models.config.description import ModelConfig, NormSpec, PositionTable
from engines.models.config.fields import Fields, UnsupportedModel
from engines.models.config.weight_names import WeightNames

_NAMES = WeightNames(
    prefix="model.decoder.",
    last_norm="final_layer_norm",
    attention_norm="self_attn_layer_norm",
    mlp_norm="final_layer_norm",
    attention_output="self_attn.out_proj",
    mlp_inputs=("fc1",),
    mlp_output="fc2",
)
_FIRST_POSITION = 2


def read(fields: Fields) -> ModelConfig:
    """Read an OPT config. Defaults are those of transformers' `OPTConfig`."""
    hidden_size, heads = fields.count("hidden_size", 768), fields.count("num_attention_heads", 12)
    width = fields.count("word_embed_proj_dim", hidden_size)
    if width != hidden_size:
        raise UnsupportedModel(f"word_embed_proj_dim is {width}; supported: {hidden_size} (hidden_size)")
    for name, supported in (
        ("do_layer_norm_before", True),
        ("layer_norm_elementwise_affine", True),
        ("_remove_final_layer_norm", False),
    ):
        if fields.flag(name, supported) != supported:
            raise UnsupportedModel(
                f"{name} is {str(not supported).lower()}; supported: {str(supported).lower()}"
            )
    head_dim, num_layers = fields.head_dim(hidden_size, heads), fields.count("num_hidden_layers", 12)
    num_positions, biased = fields.count("max_position_embeddings", 2048), fields.flag("enable_bias", True)
    return ModelConfig(
        architecture=fields.architecture,
        vocab_size=fields.count("vocab_size", 50272),
        hidden_size=hidden_size,
        intermediate_size=fields.count("ffn_dim", 3072),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=num_positions,
        norm=NormSpec(1e-5, is_layer_norm=True, biased=True),
        attention=(AttentionSpec(head_dim**-0.5, None),) * num_layers,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        dtype=fields.dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
        names=_NAMES,
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
        activation=activation(fields, "activation_function", "relu"),
        gated_mlp=False,
        position_table=PositionTable("embed_positions", num_positions, _FIRST_POSITION),
    )
