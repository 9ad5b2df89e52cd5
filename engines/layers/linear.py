"""Row-parallel linear layers, the second of each pair of layers in tensor parallelism (Megatron-LM, arXiv:1909.08053).

The first, column-parallel one is `lmi_kernels.linear` with the rows of the weight that are this rank's.
"""

from __future__ import annotations

import torch

import lmi_kernels
from engines.layers.over_ranks import sum_over_ranks
from engines.parallel import Communicator


class RowParallelLinear:
    """y = sum over ranks of x_r @ w_r.T: each rank has some input features. Rank 0 alone adds a bias."""

    def __init__(self, weight: lmi_kernels.LinearWeight, comm: Communicator) -> None:
        """weight: [out_features, in_features of this rank]."""
        self._weight = weight
        self._comm = comm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [num_rows, in_features of this rank] -> [num_rows, out_features], the same on every rank."""
        return sum_over_ranks(self.partial(x), self._comm)

    def partial(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sum, for a caller that adds up several parts before one sum over ranks."""
        return lmi_kernels.linear(x, self._weight)
