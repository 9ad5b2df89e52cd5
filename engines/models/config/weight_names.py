"""The names under which a checkpoint holds a model's tensors, without `.weight` and `.bias`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FusedQkv(Enum):
    """The order of rows in one projection of queries, keys and values."""

    STACKED = "stacked"
    """All queries, then all keys, then all values."""
    GROUPED = "grouped"
    """For each KV head: the queries that see it, its key, its value."""


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Defaults are Llama's. `prefix` stands before the names of everything but the head, `layer` before those of a
    layer's parts."""

    prefix: str = "model."
    """Some checkpoints leave out all of it or its first parts."""
    embedding: str = "embed_tokens"
    embedding_norm: str | None = None
    last_norm: str = "norm"
    head: str = "lm_head"
    layer: str = "layers.{}."

    attention_norm: str = "input_layernorm"
    attention_output_norm: str | None = None
    """Norm of what attention adds to the residual stream."""
    mlp_norm: str | None = "post_attention_layernorm"
    """None, in a parallel block: the MLP gets the input of attention."""
    mlp_output_norm: str | None = None

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """Three projections, or one for all three."""
    fused_qkv: FusedQkv = FusedQkv.STACKED
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    attention_output: str = "self_attn.o_proj"
    mlp_inputs: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    """Gate and up, or one projection: up, or gate and up one below the other."""
    mlp_output: str = "mlp.down_proj"
