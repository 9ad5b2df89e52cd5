"""Count output tokens in the table of `penalties.py`, on the device."""

from __future__ import annotations

import torch

from lmi_kernels._triton import cdiv, jit, tl, uses_triton

MAX_TOKEN_COUNT = 2**14 - 1
"""Counts saturate at this value."""
_ONCE = 2
_FULL = MAX_TOKEN_COUNT * _ONCE
_BLOCK = 128


def count_tokens_(
    counts: torch.Tensor, table_rows: torch.Tensor, tokens: torch.Tensor, penalizes: torch.Tensor
) -> None:
    """Count one output token in each row with penalties, up to `MAX_TOKEN_COUNT`.

    Args:
        counts: [any, vocab_size], int16, contiguous: the table, changed in place.
        table_rows: [num_rows], int64: row of the table for each row. Rows with penalties must have different ones.
        tokens: [num_rows], int64: one token id per row.
        penalizes: [num_rows], any integer dtype: 0 for rows without penalties.
    """
    if not uses_triton(counts):
        enabled = penalizes != 0
        places = table_rows[enabled], tokens[enabled]
        entries = counts[places]
        counts[places] = torch.where(entries < _FULL, entries + _ONCE, entries)
        return
    num_rows = len(tokens)
    _count_kernel[(cdiv(num_rows, _BLOCK),)](
        counts,
        counts.shape[1],
        table_rows,
        tokens,
        penalizes,
        num_rows,
        FULL=_FULL,
        BLOCK=_BLOCK,
        num_warps=4,
    )


# One compiled variant for all batch sizes.
@jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["table_row_ptr", "token_ptr", "penalizes_ptr"],
)
def _count_kernel(
    count_ptr,
    vocab,
    table_row_ptr,
    token_ptr,
    penalizes_ptr,
    num_rows,
    FULL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count the tokens of one block of rows."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    enabled = tl.load(penalizes_ptr + rows, mask=rows < num_rows, other=0) != 0
    table_rows = tl.load(table_row_ptr + rows, mask=enabled, other=0)
    tokens = tl.load(token_ptr + rows, mask=enabled, other=0)
    places = count_ptr + table_rows * vocab + tokens
    entry = tl.load(places, mask=enabled, other=0).to(tl.int32)
    entry = tl.where(entry < FULL, entry + 2, entry)
    tl.store(places, entry.to(tl.int16), mask=enabled)
