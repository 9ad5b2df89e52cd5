"""Reference for `update_block_tables` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels.update_block_tables import update_block_tables
from tests.kernels.references.check import Inputs, OpCheck, Results


def update_block_tables_reference(block_tables: torch.Tensor, updates: torch.Tensor) -> Results:
    block_tables = block_tables.clone()
    for row, column, block in updates.tolist():
        if row >= 0:
            block_tables[row, column] = block
    return (block_tables,)


def _launch(block_tables: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    update_block_tables(block_tables, updates)
    return block_tables


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for table_rows, max_blocks, num_updates, padding in (
        (1, 1, 1, 0),
        (3, 5, 4, 3),
        (9, 37, 200, 1),
        (2, 3, 0, 2),
    ):
        places = torch.randperm(table_rows * max_blocks, generator=generator)[:num_updates]
        blocks = torch.randint(0, 2**31 - 1, (num_updates,), generator=generator)
        updates = torch.stack((places // max_blocks, places % max_blocks, blocks), dim=1)
        padded = torch.cat((updates, torch.tensor([[-1, 2, 77]]).expand(padding, 3)))
        yield {
            "block_tables": torch.randint(0, 1000, (table_rows, max_blocks), generator=generator).int(),
            "updates": padded[torch.randperm(len(padded), generator=generator)].int(),
        }


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    yield {
        "block_tables": torch.empty(256, 512, dtype=torch.int32, device="meta"),
        "updates": torch.empty(256, 3, dtype=torch.int32, device="meta"),
    }


CHECKS = (
    OpCheck(
        "update_block_tables", _launch, update_block_tables_reference, _examples, _production, exact=True
    ),
)
