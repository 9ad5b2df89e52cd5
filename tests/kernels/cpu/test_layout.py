"""The layout of a step for native kernels, against plain Python."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmi_kernels.cpu import StepInput, structs
from lmi_kernels.cpu.library import Library
from tests.kernels.cpu.conftest import library_path

BLOCK_SIZE, NUM_BLOCKS, NUM_POSITIONS, MAX_TOKENS = 4, 100, 40, 16
NUM_TABLES, TABLE_WIDTH = 5, 9
"""The width is one block less than the positions need."""


@dataclass
class Chunk:
    table: int = 0
    start: int = 0
    token_ids: Sequence[int] = field(default_factory=lambda: [7])


chunks = st.builds(
    Chunk,
    st.integers(0, NUM_TABLES - 1),
    st.integers(0, 31),
    st.lists(st.integers(0, 50), min_size=1, max_size=5),
)


@pytest.fixture(scope="module")
def step_input() -> StepInput:
    path = library_path()
    if path is None:
        pytest.skip("native kernels are not built here")
    return StepInput(Library(path), MAX_TOKENS, NUM_POSITIONS, NUM_BLOCKS, BLOCK_SIZE)


def _tables() -> torch.Tensor:
    return torch.randint(
        NUM_BLOCKS, (NUM_TABLES, TABLE_WIDTH), dtype=torch.int32, generator=torch.Generator().manual_seed(0)
    )


def _lay_out(step_input: StepInput, tables: torch.Tensor, plan: Sequence[Chunk]) -> None:
    step_input.lay_out(
        tables,
        [chunk.table for chunk in plan],
        [chunk.start for chunk in plan],
        [len(chunk.token_ids) for chunk in plan],
        list(chain(*(chunk.token_ids for chunk in plan))),
    )


@given(plan=st.lists(chunks, min_size=1, max_size=3))
def test_every_token_has_its_position_and_slot(step_input: StepInput, plan: list[Chunk]) -> None:
    tables = _tables()
    _lay_out(step_input, tables, plan)
    tokens = [
        (token, chunk.start + i, chunk.table) for chunk in plan for i, token in enumerate(chunk.token_ids)
    ]
    assert step_input.ids.tolist() == [token for token, _, _ in tokens]
    assert step_input.positions.tolist() == [position for _, position, _ in tokens]
    assert step_input.slots.tolist() == [
        int(tables[table, position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE
        for _, position, table in tokens
    ]
    step = step_input.step
    assert (step.num_rows, step.num_sequences) == (len(tokens), len(plan))
    found = (structs.Sequence * len(plan)).from_address(step.sequences)
    first_rows = [0, *accumulate(len(chunk.token_ids) for chunk in plan)]
    for sequence, chunk, first_row in zip(found, plan, first_rows, strict=False):
        count = len(chunk.token_ids)
        assert (sequence.first_row, sequence.query_len) == (first_row, count)
        assert sequence.kv_len == chunk.start + count
        blocks = (ctypes.c_int32 * TABLE_WIDTH).from_address(sequence.blocks)
        assert list(blocks) == tables[chunk.table].tolist()


@pytest.mark.parametrize(
    "invalid",
    [
        Chunk(table=NUM_TABLES),
        Chunk(table=-1),
        Chunk(start=-1),
        Chunk(start=NUM_POSITIONS),
        Chunk(start=BLOCK_SIZE * TABLE_WIDTH),
        Chunk(token_ids=[3, -1]),
        Chunk(token_ids=[]),
        Chunk(table=4, start=8),
    ],
    ids=str,
)
def test_invalid_chunks_are_rejected(step_input: StepInput, invalid: Chunk) -> None:
    tables = _tables()
    tables[4, 1] = NUM_BLOCKS
    _lay_out(step_input, tables, [Chunk(table=4), Chunk(start=35)])
    for plan in ([invalid], [Chunk(), invalid], [invalid, Chunk()]):
        with pytest.raises(ValueError, match="does not exist"):
            _lay_out(step_input, tables, plan)


@pytest.mark.parametrize("query_lens", [[2, 2], [2], [1, 3]])
def test_lengths_that_do_not_add_up_are_rejected(step_input: StepInput, query_lens: list[int]) -> None:
    zeros = [0] * len(query_lens)
    with pytest.raises(ValueError, match="wrong lengths"):
        step_input.lay_out(_tables(), zeros, zeros, query_lens, [7, 7, 7])


def test_a_step_that_is_too_large_is_rejected(step_input: StepInput) -> None:
    with pytest.raises(ValueError, match="a step of 17 tokens is too large: the maximum is 16"):
        _lay_out(step_input, _tables(), [Chunk(token_ids=[7] * 17)])
