"""Replace linear layers, embedding and head of transformers modules with native, quantized, sharded ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import lmi_kernels
from engines.layers.collectives import all_reduce
from engines.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engines.parallel import Communicator
from lmi_kernels.cpu import Product


class Linear:
    """A packed weight as a reusable callable."""

    def __init__(self, weight: lmi_kernels.LinearWeight) -> None:
        self._compute: Callable[[torch.Tensor], torch.Tensor]
        if weight.native is not None:
            self._compute = Product(weight.native)
        elif weight.gated is not None:
            self._compute = partial(lmi_kernels.gated_linear, weight=weight)
        else:
            self._compute = partial(lmi_kernels.linear, weight=weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., inputs] -> [rows, outputs]."""
        return self._compute(x.reshape(-1, x.shape[-1]))


class PackedLinear(nn.Module):
    """Replacement of an `nn.Linear`."""

    def __init__(self, weight: lmi_kernels.LinearWeight, comm: Communicator | None = None) -> None:
        """comm: ranks to sum the results over; None: no sum."""
        super().__init__()
        self._linear = Linear(weight)
        self._comm = comm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., inputs] -> [..., outputs]."""
        y = self._linear(x)
        if self._comm is not None:
            y = all_reduce(y, self._comm)
        return y.view(*x.shape[:-1], -1)


class FusedLinears:
    """Linear layers with a shared input, computed as one. The first call computes the results of all of them."""

    def __init__(self, weight: lmi_kernels.LinearWeight, widths: list[int]) -> None:
        self._linear = Linear(weight)
        self._widths = widths
        self._input: torch.Tensor | None = None
        self._results: dict[int, torch.Tensor] = {}

    def result(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """Return the result of linear layer `index`. Each result can be taken once."""
        if x is not self._input or index not in self._results:
            y = self._linear(x).view(*x.shape[:-1], -1)
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
        self._gate_up = Linear(gate_up)
        self._down = down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., hidden] -> the same."""
        middle = self._gate_up(x)
        y: torch.Tensor = self._down(middle.view(*x.shape[:-1], -1))
        return y
