"""Sizes of the layers of a transformers module, from its config. They matter if there are no weight files."""

from __future__ import annotations

from engines.models.config.description import ExpertsConfig
from engines.models.config.fields import Fields
from engines.models.transformers_backend.sources import Source

_GATES = ("gate_proj", "gate_up_proj", "input_linear")
"""Names of an MLP's gate, alone or with the up projection, in transformers' code."""
_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_WIDTHS = ("moe_intermediate_size", "intermediate_size")
_SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTHS = ("shared_expert_intermediate_size", "shared_intermediate_size")
_DENSE_COUNTS = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
"""Number of first layers with a dense MLP."""
_INTERVALS = ("decoder_sparse_step", "moe_layer_interval")


def has_gate(source: Source) -> bool:
    return any(name in source.modeling for name in _GATES)


def read_experts(fields: Fields, source: Source, num_layers: int) -> tuple[ExpertsConfig | None, int]:
    """Return the experts, None if the model has none, and the width of the MLP that all tokens share besides them."""
    count, width = fields.first_count(*_COUNTS), fields.first_count(*_WIDTHS)
    if not count or not width or "xperts" not in source.modeling:
        return None, 0
    top_k = min(count, fields.first_count("num_experts_per_tok", "moe_k") or 1)
    shared = fields.first_count(*_SHARED_WIDTHS) or fields.first_count(*_SHARED_COUNTS) * width
    return ExpertsConfig(count, top_k, width, dense_layers=_dense_layers(fields, num_layers)), shared


def latent_attention(fields: Fields, heads: int) -> list[tuple[int, int, int]]:
    """Return (number, outputs, inputs) of the linear layers of latent attention; none if the model has another kind."""
    rank = fields.first_count("kv_lora_rank")
    if not rank:
        return []
    hidden, query_rank = fields.count("hidden_size"), fields.first_count("q_lora_rank")
    plain, rotated = fields.count("qk_nope_head_dim"), fields.count("qk_rope_head_dim")
    value = fields.first_count("v_head_dim") or plain
    queries = [(1, query_rank, hidden)] if query_rank else []
    return [
        *queries,
        (1, heads * (plain + rotated), query_rank or hidden),
        (1, rank + rotated, hidden),
        (1, heads * (plain + value), rank),
        (1, hidden, heads * value),
    ]


def _dense_layers(fields: Fields, num_layers: int) -> frozenset[int]:
    kinds = fields.words("mlp_layer_types")
    if kinds:
        return frozenset(layer for layer, kind in enumerate(kinds) if kind == "dense")
    interval = fields.first_count(*_INTERVALS) or 1
    first, last = fields.first_count(*_DENSE_COUNTS), fields.first_count("moe_layer_end_index") or num_layers
    dense = {*range(min(first, num_layers)), *fields.numbers("mlp_only_layers"), *range(last + 1, num_layers)}
    return frozenset(dense.union(layer for layer in range(num_layers) if (layer + 1) % interval))
