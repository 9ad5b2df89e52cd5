"""Shard the tensors of a transformers module over ranks, by the model's own plan. Plain Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from engines.partition import HeadShare, Shard, split_evenly, split_heads

_HALVES = "gate_up_proj"
"""Name of a linear layer with two halves of outputs. Each half is sharded."""
_WHOLE = ("replicated_with_grad_allreduce",)
_EXPERTS = "moe_tp_experts"
"""Style of experts in transformers' plan. Their results are summed over ranks."""
_GATHERED = {"colwise_gather_output": "colwise", "rowwise_split_input": "rowwise"}
"""Styles to use in attention instead of those with which transformers gathers features and splits them again."""
_OF_HEADS = ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm")
"""Names in attention of modules whose outputs belong to query heads alone or to KV heads alone.

Outputs of other modules, such as fused projections, are not split."""
NORMS_OF_ALL_HEADS = "self.q_norm(self.q_proj(hidden_states))"
"""Source text of attention with one norm over all query heads and one over all key heads."""


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """One rank's shard of a linear layer. Without rows and columns, every rank has the whole layer."""

    rows: tuple[Shard, ...] = ()
    """Ranges of output features."""
    columns: Shard | None = None
    """Range of input features. The results are summed over ranks."""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """One rank's shards of a model."""

    plan: Mapping[str, str] | None
    """See `Source.plan`."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ranks: int
    rank: int

    @property
    def head_share(self) -> HeadShare:
        return split_heads(self.num_heads, self.num_kv_heads, self.ranks, self.rank)

    @property
    def shares_experts(self) -> bool:
        """Whether each rank has a shard of every expert."""
        return self.ranks > 1 and _EXPERTS in (self.plan or {}).values()

    def of(self, module: str, shape: tuple[int, int]) -> TensorSplit:
        """Return this rank's shard of a linear layer's weight. module: name of the layer; shape: (outputs, inputs).

        Raises:
            ValueError: the weight cannot be split as the plan says.
        """
        found = _style(self.plan, module) if self.ranks > 1 else None
        if found is None or found[1] in (*_WHOLE, _EXPERTS):
            return TensorSplit()
        pattern, style = found
        if "row" in style:
            return TensorSplit(columns=self._part(pattern, shape[1]))
        if pattern.endswith(_HALVES):
            half = shape[0] // 2
            part = split_evenly(half, self.ranks, self.rank)
            return TensorSplit(rows=(part, Shard(half + part.start, half + part.stop)))
        return TensorSplit(rows=(self._part(pattern, shape[0]),))

    def _part(self, pattern: str, features: int) -> Shard:
        if not _is_attention(pattern):
            return split_evenly(features, self.ranks, self.rank)
        share = self.head_share
        for heads, part in ((self.num_heads, share.queries), (self.num_kv_heads, share.kv_heads)):
            if features == heads * self.head_dim:
                return part.scaled(self.head_dim)
        raise ValueError(f"{pattern} has {features} features, which are not a multiple of the head size")


def with_split_norms(plan: Mapping[str, str]) -> dict[str, str]:
    """Return the plan for a model with `NORMS_OF_ALL_HEADS`. transformers gathers the inputs of these norms; here the
    norms are sharded, and ranks sum the squares."""
    split = {
        pattern: _GATHERED.get(style, style) if _is_attention(pattern) else style
        for pattern, style in plan.items()
    }
    found = {pattern: style for pattern, style in split.items() if pattern.endswith((".q_proj", ".k_proj"))}
    return split | {f"{pattern.removesuffix('proj')}norm": style for pattern, style in found.items()}


def why_not_split(plan: Mapping[str, str] | None) -> str:
    """Return why tensor parallelism does not support the model. Empty if it does."""
    if not plan:
        return "transformers has no tensor-parallel plan for it"
    if any(pattern.endswith("kv_b_proj") for pattern in plan):
        return "tensor parallelism does not support its latent attention"
    if not any(_is_attention(pattern) for pattern in plan):
        return "transformers' plan does not split its attention"
    for pattern, style in plan.items():
        if style == _EXPERTS and pattern.endswith(".experts"):
            continue
        attention, allowed = _is_attention(pattern), {"rowwise", *_WHOLE}
        if not attention or pattern.rpartition(".")[2] in _OF_HEADS:
            allowed.add("colwise")
        if not attention and (pattern.endswith(_HALVES) or style == "rowwise_split_input"):
            allowed |= {"packed_colwise", "colwise_gather_output", "rowwise_split_input"}
        if style not in allowed:
            return f"transformers' plan has {pattern} as {style}, which is not supported"
    return ""


def _is_attention(pattern: str) -> bool:
    return "attn" in pattern or "attention" in pattern


def _style(plan: Mapping[str, str] | None, module: str) -> tuple[str, str] | None:
    """Return the pattern and style of a module, or None if no pattern matches."""
    for pattern, style in (plan or {}).items():
        if re.search(rf"(^|\.){re.escape(pattern).replace(re.escape('*'), '[0-9]+')}$", module):
            return pattern, style
    return None
