"""Replace linear layers, embedding and head of transformers modules with native, quantized, sharded ones."""

from __future__ import annotations

import torch
from torch import nn

import lmi_kernels
from engines.layers.collectives import all_reduce
from engines.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engines.parallel import Communicator


class PackedLinear(nn.Module):
    """Replacement of an `nn.Linear`."""

    def __init__(self, weight: lmi_kernels.LinearWeight, comm: Communicator | None = None) -> None:
        """comm: ranks to sum the results over; None: no sum."""
        super().__init__()
        self._weight = weight
        self._comm = comm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., inputs] -> [..., outputs]."""
        y = lmi_kernels.linear(x.reshape(-1, x.shape[-1]), self._weight)
        if self._comm is not None:
            y = all_reduce(y, self._comm)
        return y.view(*x.shape[:-1], -1)


class FusedLinears:
    """Linear layers with a shared input, computed as one. The first call computes the results of all of them."""

    def __init__(self, weight: lmi_kernels.LinearWeight, widths: list[int]) -> None:
        self._weight = weight
        self._widths = widths
        self._input: torch.Tensor | None = None
        self._results: dict[int, torch.Tensor] = {}

    def result(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """Return the result of linear layer `index`. Each result can be taken once."""
        if x is not self._input or index not in self._results:
            y = lmi_kernels.linear(x.reshape(-1, x.shape[-1]), self._weight).view(*x.shape[:-1], -1)
            self._input, self._results = x, dict(enumerate(torch.split(y, self._widths, -1)))
        found = self._results.pop(index)
        if not self._results:
            self._input = None
        return found


class FusedLinear(nn.Module):
    """Replacement of one of several linear layers with the same input."""

    def __init__(self, fused: FusedLinears, index: int) -> None:
        super().__init__()
        self._fused = fused
        self._index = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._fused.result(x, self._index)


class Embedding(nn.Module):
    """Replacement of the `nn.Embedding` of token ids."""

    def __init__(self, table: VocabParallelEmbedding) -> None:
        super().__init__()
        self._table = table

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: [1, num_tokens], int64 -> [1, num_tokens, hidden]."""
        return self._table(ids[0], ids[0])[None]


class Head(nn.Module):
    """Replacement of the output head."""

    def __init__(self, head: VocabParallelHead) -> None:
        super().__init__()
        self._head = head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """hidden: [1, num_rows, hidden] -> [1, num_rows, vocab_size] on rank 0, None on the others."""
        logits = self._head(hidden[0])
        return None if logits is None else logits[None]


class PackedMlp(nn.Module):
    """Replacement of a module that computes down(act(gate(x)) * up(x))."""

    def __init__(self, gate_up: lmi_kernels.LinearWeight, down: PackedLinear) -> None:
        """gate_up: packed as gated."""
        super().__init__()
        self._gate_up = gate_up
        self._down = down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., hidden] -> the same."""
        middle = lmi_kernels.gated_linear(x.reshape(-1, x.shape[-1]), self._gate_up)
        y: torch.Tensor = self._down(middle.view(*x.shape[:-1], -1))
        return y
