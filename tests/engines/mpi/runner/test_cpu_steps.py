"""Batches of the torch fallback: the rows and blocks of each sequence."""

from __future__ import annotations

import pytest
import torch

from engines.kv_cache import KvCache
from engines.layers.rotary import rotary_tables
from engines.models.config import Rotary
from engines.mpi.runner.cpu_steps import CpuBatch, CpuSteps
from engines.stopwatch import Stopwatch
from tests.support.plans import PlanMaker

CPU = torch.device("cpu")
BLOCK_SIZE = 4
NUM_BLOCKS = 64


def _prepare(chunks: list[tuple[int, int]]) -> CpuBatch:
    """Prepare a batch. `chunks`: first position and number of tokens of each sequence. The rows were used before."""
    cache = KvCache(1, 3, NUM_BLOCKS, BLOCK_SIZE, 4, torch.float32, CPU)
    tables = rotary_tables([Rotary(4)], 40, CPU)
    steps = CpuSteps(None, cache, tables, stopwatch=Stopwatch(lambda: 0.0))  # type: ignore[arg-type]
    maker = PlanMaker(BLOCK_SIZE)
    for row, (start, _) in enumerate(chunks):
        steps._tables.apply([row, 0, 12, *[NUM_BLOCKS * 1000] * 12])
        maker.begin(row, [(7 * row + 3 * i) % NUM_BLOCKS for i in range(10)], start)
    plan = maker.plan({row: [row] * count for row, (_, count) in enumerate(chunks)})
    steps.update(plan)
    return steps.prepare(plan)


@pytest.mark.parametrize(
    "chunks", [[(0, 1)], [(0, 9), (3, 1), (20, 1)], [(5, 1), (0, 20), (30, 1), (2, 7), (8, 1), (31, 1)]]
)
def test_each_sequence_has_its_own_rows_and_blocks(chunks: list[tuple[int, int]]) -> None:
    batch = _prepare(chunks)
    assert sorted(batch.input_ids.tolist()) == [
        row for row, (_, count) in enumerate(chunks) for _ in range(count)
    ]
    assert len(batch.attention.sequences) == len(chunks)
    first = 0
    for found in batch.attention.sequences:
        row = int(batch.input_ids[first])
        start, count = chunks[row]
        assert (found.first_row, found.query_len, found.kv_len) == (first, count, start + count)
        num_blocks = -(-found.kv_len // BLOCK_SIZE)  # no blocks of an earlier owner of the row
        assert found.blocks.tolist() == [(7 * row + 3 * i) % NUM_BLOCKS for i in range(num_blocks)]
        assert set(batch.input_ids[first : first + count].tolist()) == {row}
        first += count
