"""Experts of transformers' modules, replaced by ours: native, quantised. The module's own router chooses them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import lmi_kernels
from engines.layers.over_ranks import sum_over_ranks
from engines.models.foreign.patterns import activation_of, numbers
from engines.parallel import Communicator

GATE_UP, DOWN = "gate_up_proj", "down_proj"
"""Names of the tensors of all experts: [num_experts, 2 * middle, hidden], and [num_experts, hidden, middle]."""
_ROWS = 3
_PLAIN = {
    "has_gate": True,
    "has_bias": False,
    "is_transposed": False,
    "is_concatenated": True,
    "has_post_expert_norm": False,
}
"""Attributes of experts that transformers' interface for them knows, where they compute what ours do."""


class PackedExperts(nn.Module):
    """In place of a module that computes the weighted sum of some experts for each row."""

    def __init__(
        self, weights: lmi_kernels.ExpertWeights, num_experts: int, comm: Communicator | None = None
    ) -> None:
        """comm: sum the results over its ranks, of which each has a part of every expert; None: this one has all."""
        super().__init__()
        self._weights = weights
        self._num_experts = num_experts
        self._comm = comm

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """x: [num_rows, hidden]; chosen, shares: [num_rows, top_k], numbers of experts, at least 0 -> as x."""
        # Logits whose softmax over the chosen ones are the shares, divided by their sum.
        logits = torch.full((len(x), self._num_experts), -torch.inf, device=x.device)
        logits.scatter_(1, chosen, shares.float().log())
        y = lmi_kernels.experts(x, logits, self._weights, chosen.shape[1])
        y *= shares.sum(-1, keepdim=True)
        return y if self._comm is None else sum_over_ranks(y, self._comm)


def experts_activation(module: Any) -> lmi_kernels.Activation | None:
    """Return the activation of a module of experts that ours can replace; None: they cannot."""
    parameters = {name for name, _ in module.named_parameters(recurse=False)}
    if parameters != {GATE_UP, DOWN} or any(
        getattr(module, name, None) is not value for name, value in _PLAIN.items()
    ):
        return None
    both = numbers(_ROWS, 2 * module.gate_up_proj.shape[1])
    with torch.inference_mode():
        return activation_of(both, module._apply_gate(both))
