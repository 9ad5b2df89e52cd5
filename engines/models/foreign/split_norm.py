"""RMSNorm over features of all ranks."""

from __future__ import annotations

import torch
from torch import nn

from engines.layers.over_ranks import sum_over_ranks
from engines.parallel import Communicator


class SplitNorm(nn.Module):
    """In place of an RMSNorm of OLMo 2 over all heads, of which each rank has some."""

    def __init__(self, weight: torch.Tensor, eps: float, width: int, first: int, comm: Communicator) -> None:
        """
        weight: of this rank's features.
        width: of all ranks' features.
        first: place of the first of this rank's features that no rank before it has.
        """
        super().__init__()
        # Not as a parameter: another rank in this process may be building its module without weights.
        self._weight, self._eps, self._width = weight.detach(), eps, width
        self._first, self._comm = first, comm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., this rank's features] -> the same."""
        squares = x[..., self._first :].float().square().sum(-1, keepdim=True)
        mean = sum_over_ranks(squares.view(-1, 1), self._comm).view_as(squares) / self._width
        return self._weight * (x * torch.rsqrt(mean + self._eps)).to(x.dtype)
