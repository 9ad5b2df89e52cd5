"""config.json of Falcon. Its flags distinguish four generations; those of 7B and 40B are supported."""

from __future__ import annotations

from engines.models.config.attention import AttentionSpec
from engines.models.config.description import ModelConfig, ParallelBlock
from engines.models.config.fields import Fields, UnsupportedModel


def read(fields: Fields) -> ModelConfig:
    """Defaults are those of transformers' `FalconConfig`."""
    if fields.flag("alibi", False):
        raise UnsupportedModel("alibi is true; Falcon with rotary embedding is what we know")
    if not fields.flag("parallel_attn", True):
        raise UnsupportedModel(
            "parallel_attn is false; Falcon with attention and MLP beside each other is what we know"
        )
    fields.one_of("activation", "gelu", ("gelu",))
    hidden_size = fields.count("hidden_size")
    heads, kv_heads = _heads(fields)
    if hidden_size % heads:
        raise UnsupportedModel(
            f"hidden_size {hidden_size} cannot be shared evenly by {heads} attention heads"
        )
    biased = fields.flag("bias", False)
    num_layers, head_dim = fields.count("num_hidden_layers"), hidden_size // heads
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
        norm_eps=fields.positive("layer_norm_epsilon", 1e-5),
        attention=(AttentionSpec(head_dim**-0.5, fields.rotary(head_dim)),) * num_layers,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
        dtype=fields.dtype,
        eos_token_ids=fields.token_ids("eos_token_id"),
        gated_mlp=False,
        parallel_block=ParallelBlock(_num_norms(fields)),
    )


def _heads(fields: Fields) -> tuple[int, int]:
    """Return the number of query heads, and of KV heads: one (7B), or `num_kv_heads` (40B)."""
    heads = fields.count("num_attention_heads")
    if fields.flag("new_decoder_architecture", False):
        return fields.heads("num_kv_heads")
    return heads, 1 if fields.flag("multi_query", True) else heads


def _num_norms(fields: Fields) -> int:
    if not fields.flag("new_decoder_architecture", False):
        return 1
    norms = fields.count("num_ln_in_parallel_attn", 2)
    if norms > 2:
        raise UnsupportedModel(f"num_ln_in_parallel_attn is {norms}; 1 or 2 is what we know")
    return norms
