"""The references of step_inputs and update_block_tables against steps computed by hand."""

from __future__ import annotations

import pytest
import torch

from lmi_kernels import step_inputs, update_block_tables
from lmi_kernels._triton import INTERPRETED
from tests.kernels.references.step_inputs import step_inputs_reference
from tests.kernels.references.update_block_tables import update_block_tables_reference


def _int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _step() -> dict[str, torch.Tensor]:
    """Make a step with pages of 4: a decode at position 9 (table row 2), a chunk of 3 tokens from position 3 (table
    row 0), a padding sequence with a token row, and a padding row."""
    return {
        "owners": _int32(0, 1, 1, 1, 2, -1),
        "cu_seqlens_q": _int32(0, 1, 4, 5),
        "starts": _int32(9, 3, -1),
        "rows": _int32(2, 0, 99),
        "token_ids": _int32(-1, 50, 51, -1, 7, 8),
        "last_tokens": torch.tensor([60, 61, 62]),
        "block_tables": torch.tensor([[5, 3, 0], [0, 0, 0], [1, 9, 7]], dtype=torch.int32),
    }


def test_step_inputs_of_a_step_computed_by_hand() -> None:
    input_ids, positions, slots, seq_lens = step_inputs_reference(**_step(), block_size=4)
    assert input_ids.tolist() == [62, 50, 51, 60, 0, 0]
    assert positions.tolist() == [9, 3, 4, 5, 0, 0]
    assert slots.tolist() == [7 * 4 + 1, 5 * 4 + 3, 3 * 4, 3 * 4 + 1, -1, -1]
    assert seq_lens.tolist() == [10, 6, 0]


def test_table_updates_computed_by_hand() -> None:
    tables = torch.zeros(2, 3, dtype=torch.int32)
    updates = torch.tensor([[1, 0, 8], [-1, 2, 9], [0, 2, 5]], dtype=torch.int32)
    (updated,) = update_block_tables_reference(tables, updates)
    assert updated.tolist() == [[0, 0, 5], [8, 0, 0]]
    assert not tables.any()


@pytest.mark.skipif(INTERPRETED, reason="the interpreter accepts tensors on a CPU")
def test_tensors_on_a_cpu_are_rejected() -> None:
    with pytest.raises(RuntimeError, match="step_inputs runs on a GPU, not on cpu"):
        step_inputs(**_step(), block_size=4)
    with pytest.raises(RuntimeError, match="update_block_tables runs on a GPU, not on cpu"):
        update_block_tables(torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, 3, dtype=torch.int32))
