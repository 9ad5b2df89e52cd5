"""GPT-NeoX and Pythia (Black et al. 2022, arXiv:2204.06745)."""

from __future__ import annotations

from engines.models.config.activation import activation
from engines.models.config.attention import AttentionSpec
from engines.models.config.description import ModelConfig, NormSpec
from engines.models.config.fields import Fields
from engines.models.config.weight_names import WeightNames

_NAMES = WeightNames(
    prefix="gpt_neox.",
    embedding="embed_in",
    last_norm="final_layer_norm",
    head="embed_out",
    qkv=("attention.query_key_value",),
    grouped_qkv=True,
    attention_output="attention.dense",
    mlp_inputs=("mlp.dense_h_to_4h",),
    mlp_output="mlp.dense_4h_to_h",
)


def read(fields: Fields) -> ModelConfig:
    """Read a GPT-NeoX config. Defaults are those of transformers' `GPTNeoXConfig`."""
    hidden_size, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim, num_layers = fields.head_dim(hidden_size, heads), fields.count("num_hidden_layers")
    # As in transformers, these names do not count outside of the rope parameters.
    rope = fields.without("rope_theta", "partial_rotary_factor")
    theta = fields.positive("rotary_emb_base", 10000.0)
    rotary = rope.rotary(rope.rotated_features(head_dim, 0.25), default_theta=theta)
    biased = fields.flag("attention_bias", True)
    return ModelConfig(
        architecture=fields.architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=fields.count("max_position_embeddings", 2048),
        norm=NormSpec(fields.positive("layer_norm_eps", 1e-5), is_layer_norm=True, biased=True),
        attention=(AttentionSpec(head_dim**-0.5, rotary),) * num_layers,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        dtype=fields.dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
        names=_NAMES,
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=True,
        activation=activation(fields, "hidden_act", "gelu"),
        gated_mlp=False,
        parallel_block=fields.flag("use_parallel_residual", True),
    )
