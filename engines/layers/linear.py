"""Linear layers split over ranks: columns first, rows second, one sum a pair (Megatron-LM, arXiv:1909.08053)."""

from __future__ import annotations

import torch

import lmi_kernels
from engines.parallel import Communicator


class Linear:
    """y = x @ w.T + b on this rank's output features: column-parallel, or whole where the weight is."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """weight: [out_features of this rank, in_features]."""
        self._weight = lmi_kernels.pack(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [num_rows, in_features] -> [num_rows, out_features of this rank]."""
        return lmi_kernels.linear(x, self._weight)


class RowParallelLinear:
    """y = sum over ranks of x_r @ w_r.T: each rank has some input features. The bias is rank 0's alone."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, comm: Communicator) -> None:
        """weight: [out_features, in_features of this rank]."""
        self._weight = lmi_kernels.pack(weight, bias if comm.rank == 0 else None)
        self._comm = comm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [num_rows, in_features of this rank] -> [num_rows, out_features], the same on every rank."""
        return self._comm.all_reduce(self.partial(x))

    def partial(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sum, for whoever adds up several layers' at once."""
        return lmi_kernels.linear(x, self._weight)
