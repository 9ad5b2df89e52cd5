"""Sharded layers give the same result as the whole weight on one rank."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engines.layers.collectives import all_reduce
from engines.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from engines.partition import split_evenly
from lmi_kernels import linear, pack
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


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_column_and_row_parallel_linears_equal_the_whole_product(degree: int, with_bias: bool) -> None:
    generator = fresh_generator()
    up = torch.randn(11, 6, generator=generator)
    down = torch.randn(6, 11, generator=generator)
    up_bias = torch.randn(11, generator=generator) if with_bias else None
    down_bias = torch.randn(6, generator=generator) if with_bias else None
    x = torch.randn(5, 6, generator=generator)

    def rank(comm: ThreadCommunicator) -> torch.Tensor:
        part = split_evenly(11, comm.world_size, comm.rank)
        part_bias = None if up_bias is None else up_bias[part.start : part.stop]
        first = pack(up[part.start : part.stop], part_bias)
        # Only one rank has the bias of the sum.
        bias = down_bias if comm.rank == 0 else None
        second = pack(down[:, part.start : part.stop], bias)
        return all_reduce(linear(linear(x, first), second), comm)

    expected = F.linear(F.linear(x, up, up_bias), down, down_bias)
    for y in run_ranks(degree, rank):
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-4)
