"""Token embedding and output head, split over ranks by vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import lmi_kernels
from engines.layers.norm import Norm
from engines.layers.over_ranks import gather_columns, sum_over_ranks
from engines.parallel import Communicator
from engines.partition import Shard, split_evenly

Table = torch.Tensor | lmi_kernels.LinearWeight
"""[ids, hidden], as `lmi_kernels.embedding` takes it."""


@dataclass(frozen=True, slots=True)
class VocabParallelEmbedding:
    """Token embedding: each rank looks up the ids that it owns, and a sum over ranks combines the rows."""

    weight: Table
    """Of this rank's ids."""
    shard: Shard
    comm: Communicator
    scale: float | None = None
    """Rows are multiplied by it."""
    positions: Table | None = None
    """Learned positions: a row for each, which every rank has."""
    norm: Norm | None = None

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """input_ids, positions: [num_rows], int64 -> [num_rows, hidden]."""
        if self.comm.world_size == 1:
            rows = lmi_kernels.embedding(input_ids, self.weight)
        else:
            rows = lmi_kernels.embedding(input_ids, self.weight, self.shard.start, self.shard.size)
            rows = sum_over_ranks(rows, self.comm)
        if self.scale is not None:
            rows = lmi_kernels.scale(rows, self.scale)
        if self.positions is not None:
            rows = rows + lmi_kernels.embedding(positions, self.positions)
        return rows if self.norm is None else self.norm(rows)


@dataclass(frozen=True, slots=True)
class VocabParallelHead:
    """Output head: logits over the whole vocabulary, on rank 0."""

    weight: lmi_kernels.LinearWeight
    """[this rank's share of the vocabulary, hidden]."""
    vocab_size: int
    comm: Communicator
    softcap: float | None = None
    """Logits become cap * tanh(logit / cap)."""

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """hidden: [num_rows, hidden] -> [num_rows, vocab_size] on rank 0, None on the others."""
        ranks = self.comm.world_size
        widths = [split_evenly(self.vocab_size, ranks, rank).size for rank in range(ranks)]
        logits = lmi_kernels.linear(hidden, self.weight)
        if self.softcap is not None:
            logits = lmi_kernels.softcap(logits, self.softcap)
        return gather_columns(logits, widths, self.comm)
