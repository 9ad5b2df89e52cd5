"""MLPs: two projections around an activation, dense or as a mixture of experts."""

from __future__ import annotations

import torch

import lmi_kernels
from engines.layers.linear import RowParallelLinear
from engines.layers.over_ranks import sum_over_ranks
from engines.parallel import Communicator


class GatedMlp:
    """down(silu(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, gate_up: lmi_kernels.LinearWeight, down: RowParallelLinear) -> None:
        """gate_up: packed as gated, [2 * middle of this rank, hidden]."""
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """x: [num_rows, hidden] -> [num_rows, hidden], the same on every rank. slots: ignored."""
        return self._down(lmi_kernels.gated_linear(x, self._gate_up))


class PartialMlp:
    """This rank's part of down(gelu(up(x))), with the exact gelu."""

    def __init__(self, up: lmi_kernels.LinearWeight, down: RowParallelLinear) -> None:
        self._up = up
        self._down = down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [num_rows, hidden] -> [num_rows, hidden], to be summed over ranks."""
        return self._down.partial(lmi_kernels.gelu(lmi_kernels.linear(x, self._up)))


class Experts:
    """Mixture of experts (Jiang et al. 2024, arXiv:2401.04088): each token by the router's `top_k` experts, weighted by
    its softmax over these. Every rank has a part of every expert's middle, and the whole router."""

    def __init__(
        self,
        router: lmi_kernels.LinearWeight,
        weights: lmi_kernels.ExpertWeights,
        top_k: int,
        comm: Communicator,
    ) -> None:
        self._router = router
        self._weights = weights
        self._top_k = top_k
        self._comm = comm

    def __call__(self, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """x: [num_rows, hidden] -> [num_rows, hidden], the same on every rank. slots: as of `lmi_kernels.experts`."""
        out = lmi_kernels.experts(x, lmi_kernels.linear(x, self._router), self._weights, self._top_k, slots)
        return sum_over_ranks(out, self._comm)
