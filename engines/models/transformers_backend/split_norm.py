"""RMSNorm over features that are sharded over ranks."""

from __future__ import annotations

import torch
from torch import nn

from engines.layers.collectives import all_reduce
from engines.parallel import Communicator


class SplitNorm(nn.Module):
    """Replacement of an RMSNorm over all heads, as in OLMo 2. Each rank has some of the heads."""

    def __init__(
        self,
        weight: torch.Tensor,
        eps: float,
        width: int,
        first: int,
        comm: Communicator,
        rounds_first: bool = False,
    ) -> None:
        """
        weight: weights of this rank's features.
        width: number of features over all ranks.
        first: index of the first of this rank's features that no earlier rank has.
        rounds_first: whether features are rounded to x's dtype before they are multiplied by the weights.
        """
        super().__init__()
        # Not a parameter, because another rank in this process may be inside `init_empty_weights`.
        self._weight, self._eps, self._width = weight.detach(), eps, width
        self._first, self._comm, self._rounds_first = first, comm, rounds_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., this rank's features] -> the same."""
        squares = x[..., self._first :].float().square().sum(-1, keepdim=True)
        mean = all_reduce(squares.view(-1, 1), self._comm).view_as(squares) / self._width
        normed = x.float() * torch.rsqrt(mean + self._eps)
        return (self._weight * (normed.to(x.dtype) if self._rounds_first else normed)).to(x.dtype)
