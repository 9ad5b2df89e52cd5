"""Dense MLPs and mixture of experts, on this rank's shard of the intermediate features.

Calls map [num_rows, hidden] to [num_rows, hidden], and the caller sums the results over ranks. slots: the rows'
`slot_mapping`, which marks padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import lmi_kernels


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(act(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    gate_up: lmi_kernels.LinearWeight
    """Weight packed as gated, with the activation: [2 * this rank's intermediate size, hidden]."""
    down: lmi_kernels.LinearWeight

    def __call__(self, x: torch.Tensor, slots: torch.Tensor | None) -> torch.Tensor:
        return lmi_kernels.linear(lmi_kernels.gated_linear(x, self.gate_up), self.down)


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(act(up(x)))."""

    up: lmi_kernels.LinearWeight
    down: lmi_kernels.LinearWeight
    activation: lmi_kernels.Activation

    def __call__(self, x: torch.Tensor, slots: torch.Tensor | None) -> torch.Tensor:
        middle = lmi_kernels.activate(lmi_kernels.linear(x, self.up), self.activation)
        return lmi_kernels.linear(middle, self.down)


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Mixture of experts (Jiang et al. 2024, arXiv:2401.04088). Each token is routed to `top_k` experts, weighted by
    the softmax of the router's scores. Every rank has the whole router."""

    router: lmi_kernels.LinearWeight
    experts: lmi_kernels.ExpertWeights
    top_k: int
    renormalize: bool
    """Whether the routing weights of a token's experts are normalized to a sum of 1."""

    def __call__(self, x: torch.Tensor, slots: torch.Tensor | None) -> torch.Tensor:
        scores = lmi_kernels.linear(x, self.router)
        return lmi_kernels.experts(x, scores, self.experts, self.top_k, slots, self.renormalize)
