"""Token embedding and output head, split over ranks by vocabulary."""

from __future__ import annotations

import torch

import lmi_kernels
from engines.layers.over_ranks import gather_columns, sum_over_ranks
from engines.parallel import Communicator
from engines.partition import Shard, split_evenly


class VocabParallelEmbedding:
    """Token embedding: each rank looks up the ids that it owns, and a sum over ranks combines the rows."""

    def __init__(
        self, weight: torch.Tensor | lmi_kernels.LinearWeight, shard: Shard, comm: Communicator
    ) -> None:
        """weight: [shard.size, hidden], as `lmi_kernels.embedding` takes it."""
        self._weight = weight
        self._shard = shard
        self._comm = comm

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        """input_ids: [num_rows], int64 -> [num_rows, hidden]."""
        if self._comm.world_size == 1:
            return lmi_kernels.embedding(input_ids, self._weight)
        shard = self._shard
        rows = lmi_kernels.embedding(input_ids, self._weight, shard.start, shard.size)
        return sum_over_ranks(rows, self._comm)


class VocabParallelHead:
    """Output head: logits over the whole vocabulary, on rank 0."""

    def __init__(self, weight: lmi_kernels.LinearWeight, vocab_size: int, comm: Communicator) -> None:
        """weight: [this rank's share of the vocabulary, hidden]."""
        self._weight = weight
        self._comm = comm
        self._widths = [
            split_evenly(vocab_size, comm.world_size, rank).size for rank in range(comm.world_size)
        ]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """hidden: [num_rows, hidden] -> [num_rows, vocab_size] on rank 0, None on the others."""
        return gather_columns(lmi_kernels.linear(hidden, self._weight), self._widths, self._comm)
