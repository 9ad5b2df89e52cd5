"""Replace the experts of transformers modules with native, quantized ones. The module's own router chooses experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import lmi_kernels
from engines.layers.collectives import all_reduce
from engines.models.transformers_backend.patterns import activation_of, numbers
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
"""Attributes of transformers' experts interface, with the values that `PackedExperts` supports."""


class PackedExperts(nn.Module):
    """Replacement of a module that computes the weighted sum of chosen experts for each row."""

    def __init__(
        self, weights: lmi_kernels.ExpertWeights, num_experts: int, comm: Communicator | None = None
    ) -> None:
        """comm: ranks that each have a shard of every expert; results are summed over them. None: this rank has all."""
        super().__init__()
        self._weights = weights
        self._num_experts = num_experts
        self._comm = comm

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Sum experts. x: [num_rows, hidden]; chosen, shares: [num_rows, top_k], expert indices and weights -> as x."""
        # The softmax of these logits over the chosen experts gives the shares divided by their sum.
        logits = torch.full((len(x), self._num_experts), -torch.inf, device=x.device)
        logits.scatter_(1, chosen, shares.float().log())
        y = lmi_kernels.experts(x, logits, self._weights, chosen.shape[1])
        y *= shares.sum(-1, keepdim=True)
        return y if self._comm is None else all_reduce(y, self._comm)


def experts_activation(module: Any) -> lmi_kernels.Activation | None:
    """Return the activation of experts that `PackedExperts` can replace. Return None for other modules."""
    parameters = {name for name, _ in module.named_parameters(recurse=False)}
    if parameters != {GATE_UP, DOWN} or any(
        getattr(module, name, None) is not value for name, value in _PLAIN.items()
    ):
        return None
    both = numbers(_ROWS, 2 * module.gate_up_proj.shape[1])
    with torch.inference_mode():
        return activation_of(both, module._apply_gate(both))
