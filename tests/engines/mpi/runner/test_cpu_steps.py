"""The torch fallback's batches: who is grouped with whom for attention, and what fills a step up."""

from __future__ import annotations

import pytest
import torch

from engines.kv_cache import KvCache
from engines.layers.rotary import rotary_tables
from engines.models.config import Rotary
from engines.mpi.runner.cpu_steps import CpuBatch, CpuSteps
from lmi_kernels import batch_invariant_rows
from lmi_kernels.attention_plan import GroupLimits, KvGather
from tests.support.plans import PlanMaker

CPU = torch.device("cpu")
BLOCK_SIZE = 4
NUM_BLOCKS = 64
LIMITS = GroupLimits(BLOCK_SIZE, NUM_BLOCKS, 3, 64)


def _prepare(parts: list[tuple[int, int]]) -> CpuBatch:
    """parts: first position and number of tokens of each sequence; its row has belonged to others before."""
    cache = KvCache(1, 3, NUM_BLOCKS, BLOCK_SIZE, 4, torch.float32, CPU)
    steps = CpuSteps(None, cache, rotary_tables([Rotary(4)], 40, CPU), LIMITS, contiguous=False, leads=True)  # type: ignore[arg-type]
    maker = PlanMaker(BLOCK_SIZE)
    for row, (start, _) in enumerate(parts):
        steps._tables.apply([row, 0, 12, *[NUM_BLOCKS * 1000] * 12])
        maker.begin(row, [(7 * row + 3 * i) % NUM_BLOCKS for i in range(10)], start)
    plan = maker.plan({row: [row] * count for row, (_, count) in enumerate(parts)})
    steps.update(plan)
    return steps.prepare(plan)


@pytest.mark.parametrize(
    "parts", [[(0, 1)], [(0, 9), (3, 1), (20, 1)], [(5, 1), (0, 20), (30, 1), (2, 7), (8, 1), (31, 1)]]
)
def test_groups_cover_every_token_once_and_decodes_come_first(parts: list[tuple[int, int]]) -> None:
    batch = _prepare(parts)
    num_tokens = sum(count for _, count in parts)
    ids = batch.input_ids.tolist()
    assert len(ids) == batch_invariant_rows(num_tokens)
    assert ids[num_tokens:] == [0] * (len(ids) - num_tokens)
    groups = batch.attention.groups
    rows = [group.first_row + i for group in groups for i in range(group.num_seqs * group.query_len)]
    assert sorted(rows) == list(range(num_tokens))
    for source in (group.source for group in groups):
        if isinstance(source, KvGather):  # nothing of an earlier owner of a row
            assert int(source.pages.max()) < 2 * LIMITS.num_kv_heads * NUM_BLOCKS
    singles = sum(count == 1 for _, count in parts)
    assert [parts[token][1] == 1 for token in ids[:num_tokens]] == [
        row < singles for row in range(num_tokens)
    ]
