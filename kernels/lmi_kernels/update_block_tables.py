"""Apply a step's changes of the host's block tables to the copy on the GPU."""

from __future__ import annotations

import torch

from lmi_kernels._triton import cdiv, jit, tl, uses_triton

_BLOCK, _NUM_WARPS = 128, 4


def update_block_tables(block_tables: torch.Tensor, updates: torch.Tensor) -> None:
    """Set block_tables[row, column] = block for each (row, column, block) in `updates`.

    Args:
        block_tables: [table rows, max_blocks], int32, contiguous; written in place.
        updates: [num_updates, 3], int32, contiguous; each place at most once. Row -1 is padding and is ignored.

    Raises:
        RuntimeError: the tensors are on a CPU without Triton's interpreter.
    """
    if not uses_triton(block_tables):
        raise RuntimeError(f"update_block_tables runs on a GPU, not on {block_tables.device}")
    num_updates = updates.shape[0]
    _update_block_tables_kernel[(cdiv(num_updates, _BLOCK),)](
        block_tables, updates, block_tables.shape[1], num_updates, BLOCK=_BLOCK, num_warps=_NUM_WARPS
    )


# Avoid recompilation: counts change from step to step, and updates may be an unaligned part of a larger buffer.
@jit(
    do_not_specialize=("max_blocks", "num_updates"),
    do_not_specialize_on_alignment=("updates_ptr",),
)
def _update_block_tables_kernel(block_tables_ptr, updates_ptr, max_blocks, num_updates, BLOCK: tl.constexpr):
    """Write BLOCK updates."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num_updates
    row = tl.load(updates_ptr + 3 * i, mask=inside, other=-1).to(tl.int64)
    column = tl.load(updates_ptr + 3 * i + 1, mask=inside, other=0)
    block = tl.load(updates_ptr + 3 * i + 2, mask=inside, other=0)
    tl.store(block_tables_ptr + row * max_blocks + column, block, mask=row >= 0)
