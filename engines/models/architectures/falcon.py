"""Falcon 7B, 40B and RW (Almazrouei et al. 2023, arXiv:2311.16867).

7B has multi-query attention, in parallel with the MLP and with one shared norm. 40B has grouped-query attention and two
norms. RW has ALiBi, and attention before the MLP.
"""

from __future__ import annotations

from engines.models.config.activation import activation
from engines.models.config.alibi import alibi_slopes
from engines.models.config.attention import AttentionSpec
from engines.models.config.description import ModelConfig, NormSpec
from engines.models.config.fields import Fields, UnsupportedModel
from engines.models.config.weight_names import WeightNames


def read(fields: Fields) -> ModelConfig:
    """Read a Falcon config. Defaults are those of transformers' `FalconConfig`."""
    hidden_size = fields.count("hidden_size")
    grouped = fields.flag("new_decoder_architecture", False)
    heads, kv_heads = _heads(fields, grouped)
    head_dim = fields.head_dim(hidden_size, heads)
    biased = fields.flag("bias", False)
    parallel = grouped or fields.flag("parallel_attn", True)
    num_layers = fields.count("num_hidden_layers")
    return ModelConfig(
        architecture=fields.architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("ffn_hidden_size", 4 * hidden_size),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=fields.count("max_position_embeddings", 2048),
        norm=NormSpec(fields.positive("layer_norm_epsilon", 1e-5), is_layer_norm=True, biased=True),
        attention=(_attention(fields, heads, head_dim),) * num_layers,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        dtype=fields.dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
        names=_names(_num_norms(fields) if grouped else 1, parallel),
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
        activation=activation(fields, "activation", "gelu"),
        gated_mlp=False,
        parallel_block=parallel,
    )


def _attention(fields: Fields, heads: int, head_dim: int) -> AttentionSpec:
    scale = head_dim**-0.5
    if not fields.flag("alibi", False):
        return AttentionSpec(scale, fields.rotary(head_dim))
    # Falcon adds the ALiBi bias before scaling.
    return AttentionSpec(scale, None, alibi_slopes=tuple(scale * slope for slope in alibi_slopes(heads)))


def _heads(fields: Fields, grouped: bool) -> tuple[int, int]:
    """Return the numbers of query heads and KV heads (7B: 1 KV head; 40B: `num_kv_heads`; RW: one per query head)."""
    if grouped:
        return fields.heads("num_kv_heads")
    heads = fields.count("num_attention_heads")
    return heads, 1 if fields.flag("multi_query", True) else heads


def _num_norms(fields: Fields) -> int:
    norms = fields.count("num_ln_in_parallel_attn", 2)
    if norms > 2:
        raise UnsupportedModel(f"num_ln_in_parallel_attn is {norms}; supported: 1, 2")
    return norms


def _names(num_norms: int, parallel: bool) -> WeightNames:
    two = parallel and num_norms == 2
    return WeightNames(
        prefix="transformer.",
        embedding="word_embeddings",
        last_norm="ln_f",
        layer="h.{}.",
        attention_norm="ln_attn" if two else "input_layernorm",
        mlp_norm="ln_mlp" if two else None if parallel else "post_attention_layernorm",
        qkv=("self_attention.query_key_value",),
        grouped_qkv=True,
        attention_output="self_attention.dense",
        mlp_inputs=("mlp.dense_h_to_4h",),
        mlp_output="mlp.dense_4h_to_h",
    )
