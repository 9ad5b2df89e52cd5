"""Token embedding and output head, split over ranks by vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import lmi_kernels
from engines.parallel import Communicator
from engines.partition import Shard, split_evenly


class VocabParallelEmbedding:
    """Each rank looks up the ids that it owns; the sum over ranks has every row."""

    def __init__(self, weight: torch.Tensor, shard: Shard, comm: Communicator) -> None:
        """weight: [shard.size, hidden]."""
        self._weight = weight
        self._shard = shard
        self._comm = comm

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        """input_ids: [num_rows], int64 -> [num_rows, hidden]."""
        if self._comm.world_size == 1:
            return F.embedding(input_ids, self._weight)
        local = input_ids - self._shard.start
        foreign = (local < 0) | (local >= self._shard.size)
        rows = F.embedding(local.masked_fill(foreign, 0), self._weight)
        return self._comm.all_reduce(rows.masked_fill_(foreign[:, None], 0))


class VocabParallelHead:
    """Logits over the whole vocabulary, on rank 0."""

    def __init__(self, weight: torch.Tensor, vocab_size: int, comm: Communicator) -> None:
        """weight: [this rank's share of the vocabulary, hidden]."""
        self._weight = lmi_kernels.pack(weight)
        self._comm = comm
        self._widths = [
            split_evenly(vocab_size, comm.world_size, rank).size for rank in range(comm.world_size)
        ]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """hidden: [num_rows, hidden] -> [num_rows, vocab_size] on rank 0, None on the others."""
        return self._comm.gather_columns(lmi_kernels.linear(hidden, self._weight), self._widths)
