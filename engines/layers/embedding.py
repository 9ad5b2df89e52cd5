"""Token embedding and output head, sharded by vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import lmi_kernels
from engines.layers.collectives import all_reduce, gather_columns
from engines.layers.norm import Norm
from engines.parallel import Communicator
from engines.partition import Shard, split_evenly

Table = torch.Tensor | lmi_kernels.LinearWeight
"""Embedding table, [ids, hidden], as `lmi_kernels.embedding` takes it."""


@dataclass(frozen=True, slots=True)
class VocabParallelEmbedding:
    """Token embedding. Each rank looks up its own ids, and an all-reduce combines the rows."""

    weight: Table
    """Rows of this rank's ids."""
    shard: Shard
    comm: Communicator
    scale: float | None = None
    """Factor for token embeddings."""
    positions: Table | None = None
    """Learned position embeddings, one row per position. Every rank has all of them."""
    norm: Norm | None = None

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Look up embeddings. input_ids, positions: [num_rows], int64 -> [num_rows, hidden]."""
        first_id = self.shard.start if self.comm.world_size > 1 else None
        rows = all_reduce(lmi_kernels.embedding(input_ids, self.weight, first_id), self.comm)
        if self.scale is not None:
            rows = lmi_kernels.scale(rows, self.scale)
        if self.positions is not None:
            rows = rows + lmi_kernels.embedding(positions, self.positions)
        return rows if self.norm is None else self.norm(rows)


@dataclass(frozen=True, slots=True)
class VocabParallelHead:
    """Output head. Rank 0 gathers the logits of the whole vocabulary."""

    weight: lmi_kernels.LinearWeight
    """[this rank's shard of the vocabulary, hidden]."""
    vocab_size: int
    comm: Communicator
    softcap: float | None = None
    """Soft cap: logits become cap * tanh(logit / cap)."""
    logit_bounds: lmi_kernels.LogitBounds | None = None
    """Bounds of this rank's logits; None: `largest` is not supported."""

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Compute logits. hidden: [num_rows, hidden] -> [num_rows, vocab_size] on rank 0, None on other ranks."""
        widths = [self._shard(rank).size for rank in range(self.comm.world_size)]
        logits = lmi_kernels.linear(hidden, self.weight)
        if self.softcap is not None:
            logits = lmi_kernels.softcap(logits, self.softcap)
        return gather_columns(logits, widths, self.comm)

    def largest(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Find each row's largest logit in each rank's shard.

        Returns: [num_rows, 2 * ranks] on rank 0, with the logit and its token id of each rank; None on other ranks. See
            `lmi_kernels.greedy_head`.
        """
        found = lmi_kernels.greedy_head(
            hidden,
            self.weight,
            self.logit_bounds,
            first_id=self._shard(self.comm.rank).start,
            softcap=self.softcap,
            ranks=self.comm if self.comm.world_size > 1 else None,
        )
        return gather_columns(found, [2] * self.comm.world_size, self.comm)

    def _shard(self, rank: int) -> Shard:
        return split_evenly(self.vocab_size, self.comm.world_size, rank)
