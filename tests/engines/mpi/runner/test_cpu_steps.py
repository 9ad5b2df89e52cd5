"""The torch fallback's batches: each sequence's rows and blocks."""

from __future__ import annotations

import pytest
import torch

from engines.kv_cache import KvCache
from engines.layers.rotary import rotary_tables
from engines.models.config import Rotary
from engines.mpi.runner.cpu_steps import CpuBatch, CpuSteps
from tests.support.plans import PlanMaker

CPU = torch.device("cpu")
BLOCK_SIZE = 4
NUM_BLOCKS = 64


def _prepare(parts: list[tuple[int, int]]) -> CpuBatch:
    """parts: first position and number of tokens of each sequence; its row has belonged to others before."""
    cache = KvCache(1, 3, NUM_BLOCKS, BLOCK_SIZE, 4, torch.float32, CPU)
    steps = CpuSteps(None, cache, rotary_tables([Rotary(4)], 40, CPU), leads=True)  # type: ignore[arg-type]
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
def test_each_sequence_has_its_own_rows_and_blocks(parts: list[tuple[int, int]]) -> None:
    batch = _prepare(parts)
    assert sorted(batch.input_ids.tolist()) == [
        row for row, (_, count) in enumerate(parts) for _ in range(count)
    ]
    assert len(batch.attention.sequences) == len(parts)
    first = 0
    for found in batch.attention.sequences:
        row = int(batch.input_ids[first])
        start, count = parts[row]
        assert (found.first_row, found.query_len, found.kv_len) == (first, count, start + count)
        num_blocks = -(-found.kv_len // BLOCK_SIZE)  # nothing of an earlier owner of the row
        assert found.blocks.tolist() == [(7 * row + 3 * i) % NUM_BLOCKS for i in range(num_blocks)]
        assert set(batch.input_ids[first : first + count].tolist()) == {row}
        first += count
