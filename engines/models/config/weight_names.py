"""Names of a model's tensors in a checkpoint, without `.weight` and `.bias`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Tensor names of an architecture. Defaults are Llama's. `prefix` precedes all names except the head's, and `layer`
    precedes the names within a layer."""

    prefix: str = "model."
    """Prefix of all names except the head's. Some checkpoints omit it or its first parts."""
    embedding: str = "embed_tokens"
    embedding_norm: str | None = None
    last_norm: str = "norm"
    head: str = "lm_head"
    layer: str = "layers.{}."

    attention_norm: str = "input_layernorm"
    attention_output_norm: str | None = None
    """Norm of the attention output, before it is added to the residual stream."""
    mlp_norm: str | None = "post_attention_layernorm"
    """None in a parallel block whose MLP gets the same normalized input as attention."""
    mlp_output_norm: str | None = None

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """Three projections, or one fused projection."""
    grouped_qkv: bool = False
    """Order of the rows in a fused projection. True: for each KV head, its query heads, its key, its value. False: all
    queries, then all keys, then all values."""
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    attention_output: str = "self_attn.o_proj"
    mlp_inputs: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    """Gate and up projections, or one projection: up only, or gate and up stacked."""
    mlp_output: str = "mlp.down_proj"
