"""Token embedding and output head, split over ranks by vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import lmi_kernels
from engines.layers.over_ranks import gather_columns, sum_over_ranks
from engines.parallel import Communicator
from engines.partition import Shard, split_evenly


@dataclass(frozen=True, slots=True)
class VocabParallelEmbedding:
    """Token embedding: each rank looks up the ids that it owns, and a sum over ranks combines the rows."""

    weight: torch.Tensor | lmi_kernels.LinearWeight
    """[shard.size, hidden], as `lmi_kernels.embedding` takes it."""
    shard: Shard
    comm: Communicator

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        """input_ids: [num_rows], int64 -> [num_rows, hidden]."""
        if self.comm.world_size == 1:
            return lmi_kernels.embedding(input_ids, self.weight)
        rows = lmi_kernels.embedding(input_ids, self.weight, self.shard.start, self.shard.size)
        return sum_over_ranks(rows, self.comm)


@dataclass(frozen=True, slots=True)
class VocabParallelHead:
    """Output head: logits over the whole vocabulary, on rank 0."""

    weight: lmi_kernels.LinearWeight
    """[this rank's share of the vocabulary, hidden]."""
    vocab_size: int
    comm: Communicator

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """hidden: [num_rows, hidden] -> [num_rows, vocab_size] on rank 0, None on the others."""
        ranks = self.comm.world_size
        widths = [split_evenly(self.vocab_size, ranks, rank).size for rank in range(ranks)]
        return gather_columns(lmi_kernels.linear(hidden, self.weight), widths, self.comm)
