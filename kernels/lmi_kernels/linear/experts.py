"""Mixture of experts (Jiang et al. 2024, arXiv:2401.04088, section 2.1). Each row is routed to its `top_k` best
experts, which are gated MLPs: y = sum over chosen e of p_e * down_e @ (activation(gate_e @ x) * (up_e @ x)). p is the
softmax over the logits of all experts or, if renormalized, of the chosen ones.

On a CPU experts are computed one after another. On a GPU the host does not know the choice: rows are sorted by expert
on the device (`route`), and two grouped matmuls compute all experts at once (`grouped_matmul`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lmi_kernels._triton import uses_triton
from lmi_kernels.cpu.recorder import NotRecorded, Rows
from lmi_kernels.elementwise.activate import Activation
from lmi_kernels.linear.grouped_matmul import down_matmul, gate_up_matmul
from lmi_kernels.linear.linear import LinearWeight, gated_linear, linear, pack
from lmi_kernels.linear.route import route
from lmi_kernels.linear.sum_choices import sum_choices
from lmi_kernels.tuning import parameters

_ROWS_PER_EXPERT = (1, 8, 24, 48)
"""Upper bounds, in mean rows per expert, of the ranges that share tuned tiles."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A layer's experts for `experts`: one by one (CPU) or stacked."""

    per_expert: tuple[tuple[LinearWeight, LinearWeight], ...] | None
    """Weights of each expert: the fused gate and up projection, and the down projection."""
    stacked: tuple[torch.Tensor, torch.Tensor] | None
    """[num_experts, 2 * intermediate, hidden] and [num_experts, hidden, intermediate]."""
    gated: Activation = "silu"
    """Activation of the gates."""


def pack_experts(
    gate_up: torch.Tensor,
    down: torch.Tensor,
    pack: Callable[..., LinearWeight] = pack,
    gated: Activation = "silu",
) -> ExpertWeights:
    """Prepare a layer's experts for `experts`.

    Args:
        gate_up: [num_experts, 2 * intermediate, hidden], gates in the first half; `intermediate` is this rank's shard.
        down: [num_experts, hidden, intermediate].
        pack: prepares each expert's weights on a CPU; see `lmi_kernels.pack`.
        gated: activation of the gates.
    """
    if uses_triton(gate_up):
        return ExpertWeights(None, (gate_up.contiguous(), down.contiguous()), gated)
    return ExpertWeights(
        tuple((pack(g, gated=gated), pack(d)) for g, d in zip(gate_up, down, strict=True)), None, gated
    )


def experts(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    weights: ExpertWeights,
    top_k: int,
    slots: torch.Tensor | None = None,
    renormalize: bool = True,
) -> torch.Tensor:
    """Return each row's weighted sum over its chosen experts.

    Args:
        x: [num_rows, hidden].
        router_logits: [num_rows, num_experts]. If logits are equal, the expert with the lower index comes first.
        weights: this rank's shard of every expert.
        top_k: experts per row, at most num_experts.
        slots: [num_rows], int64. A row with -1 is padding: no weights are read for it, and its result is 0. Ignored on
            a CPU, which has no padding. None: no row is padding.
        renormalize: weight experts by the softmax over the chosen experts' logits; otherwise over all logits.

    Returns: [num_rows, hidden] in x's dtype. The caller sums the results over ranks. With native weights a row's bits
    do not depend on the other rows.
    """
    if isinstance(x, Rows):
        return _recorded(x, router_logits, weights, top_k, renormalize)
    if weights.per_expert is not None:
        return _experts_torch(x, router_logits, weights.per_expert, top_k, renormalize)
    if weights.stacked is None:
        raise ValueError("ExpertWeights hold experts either one by one or stacked")
    gate_up, down = weights.stacked
    num_rows, num_experts = router_logits.shape
    if num_rows == 0:
        return torch.empty_like(x)
    # The host knows only the mean number of rows per expert, which is constant in a CUDA graph.
    mean = num_rows * top_k / num_experts
    key = next((str(limit) for limit in _ROWS_PER_EXPERT if mean <= limit), "more")
    block_m = parameters("experts", key, x.device)["block_m"]
    routing = route(router_logits, top_k, block_m, slots, renormalize)
    tiles = parameters("experts_gate_up", key, x.device)
    middle = gate_up_matmul(x, gate_up, routing, tiles, weights.gated)
    parts = down_matmul(middle, down, routing, parameters("experts_down", key, x.device))
    return parts if top_k == 1 and slots is None else sum_choices(parts, top_k, slots)


def _recorded(
    x: Rows, router_logits: torch.Tensor, weights: ExpertWeights, top_k: int, renormalize: bool
) -> torch.Tensor:
    pairs = [(g.native, d.native) for g, d in weights.per_expert or ()]
    natives = [(g, d) for g, d in pairs if g is not None and d is not None]
    if not isinstance(router_logits, Rows) or not natives or len(natives) < len(pairs):
        raise NotRecorded("experts whose weights are not native")
    return x.recorder.experts(x, router_logits, natives, top_k, renormalize)


def _experts_torch(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    per_expert: tuple[tuple[LinearWeight, LinearWeight], ...],
    top_k: int,
    renormalize: bool,
) -> torch.Tensor:
    """Compute in the order of operations of transformers' MixtralSparseMoeBlock, and sum the best choice first."""
    logits = router_logits.float()
    # A stable sort, because torch.topk does not define the order of equal values.
    chosen = logits.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    shares = torch.softmax(logits, dim=-1).gather(1, chosen)
    if renormalize:
        shares /= shares.sum(dim=-1, keepdim=True)
    by_expert = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount(minlength=len(per_expert)).tolist()
    parts = x.new_empty(len(x) * top_k, x.shape[1])
    for (gate_up, down), choices in zip(per_expert, by_expert.split(counts), strict=True):
        if len(choices):
            parts[choices] = linear(gated_linear(x[choices // top_k], gate_up), down)
    parts = parts.mul_(shares.view(-1, 1)).view(len(x), top_k, x.shape[1])
    total = parts[:, 0].clone()
    for rank in range(1, top_k):
        total += parts[:, rank]
    return total
