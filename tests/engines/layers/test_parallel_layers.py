"""Embeddings and heads sharded by vocabulary give the same result as the whole weight on one rank."""

from __future__ import annotations

import pytest
import torch

from engines.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engines.partition import split_evenly
from lmi_kernels import pack
from tests.support.seeds import fresh_generator
from tests.support.thread_ranks import ThreadCommunicator, run_ranks

DEGREES = [1, 2, 3, 5]


@pytest.mark.parametrize("degree", DEGREES)
def test_embedding_is_sharded_by_vocabulary(degree: int) -> None:
    generator = fresh_generator()
    weight = torch.randn(17, 6, generator=generator)
    ids = torch.cat((torch.randint(0, 17, (20,), generator=generator), torch.arange(17)))

    def rank(comm: ThreadCommunicator) -> torch.Tensor:
        shard = split_evenly(17, comm.world_size, comm.rank)
        return VocabParallelEmbedding(weight[shard.start : shard.stop], shard, comm)(
            ids, torch.zeros_like(ids)
        )

    for rows in run_ranks(degree, rank):
        assert torch.equal(rows, weight[ids])


@pytest.mark.parametrize("degree", DEGREES)
def test_head_gathers_all_logits_on_rank_0(degree: int) -> None:
    generator = fresh_generator()
    weight = torch.randn(17, 6, generator=generator)
    hidden = torch.randn(4, 6, generator=generator)

    def rank(comm: ThreadCommunicator) -> torch.Tensor | None:
        shard = split_evenly(17, comm.world_size, comm.rank)
        return VocabParallelHead(pack(weight[shard.start : shard.stop]), 17, comm)(hidden)

    logits, *others = run_ranks(degree, rank)
    assert logits is not None
    torch.testing.assert_close(logits, hidden @ weight.T, rtol=0, atol=1e-5)
    assert others == [None] * (degree - 1)
