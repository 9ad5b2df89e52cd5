"""Count a token of each row's output in the table that penalties go by (`penalties.py`); nobody has to see it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels._triton import cdiv, jit, tl, uses_triton
from lmi_kernels.checks import ROUNDING, Inputs, OpCheck, Results

MOST_COUNTED = 2**14 - 1
"""What stands more often in the output is taken to stand so often there."""
_ONCE = 2
_FULL = MOST_COUNTED * _ONCE
_BLOCK = 128


def count_tokens_(
    counts: torch.Tensor, table_rows: torch.Tensor, tokens: torch.Tensor, penalizes: torch.Tensor
) -> None:
    """Add a token of the output to each row that asks for penalties; it stays at `MOST_COUNTED`.

    Args:
        counts: [any, vocab_size], int16, contiguous: the table, changed in place.
        table_rows: [num_rows], int64; of those that ask each once.
        tokens: [num_rows], int64: ids of the vocabulary.
        penalizes: [num_rows], any integer dtype: 0 in the rows that do not ask.
    """
    call = count_tokens_triton if uses_triton(counts) else _count_tokens_torch
    call(counts, table_rows, tokens, penalizes)


# One variant for all batch sizes.
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
    """A block of rows a program."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    asks = tl.load(penalizes_ptr + rows, mask=rows < num_rows, other=0) != 0
    table_rows = tl.load(table_row_ptr + rows, mask=asks, other=0)
    tokens = tl.load(token_ptr + rows, mask=asks, other=0)
    places = count_ptr + table_rows * vocab + tokens
    entry = tl.load(places, mask=asks, other=0).to(tl.int32)
    entry = tl.where(entry < FULL, entry + 2, entry)
    tl.store(places, entry.to(tl.int16), mask=asks)


def count_tokens_triton(
    counts: torch.Tensor, table_rows: torch.Tensor, tokens: torch.Tensor, penalizes: torch.Tensor
) -> Results:
    """As `count_tokens_`; returns the table."""
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
    return (counts,)


def count_tokens_reference(
    counts: torch.Tensor, table_rows: torch.Tensor, tokens: torch.Tensor, penalizes: torch.Tensor
) -> Results:
    """On a copy."""
    counts = counts.clone()
    _count_tokens_torch(counts, table_rows, tokens, penalizes)
    return (counts,)


def _count_tokens_torch(
    counts: torch.Tensor, table_rows: torch.Tensor, tokens: torch.Tensor, penalizes: torch.Tensor
) -> None:
    asks = penalizes != 0
    places = table_rows[asks], tokens[asks]
    entries = counts[places]
    counts[places] = torch.where(entries < _FULL, entries + _ONCE, entries)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    """Entries at their end and before it; padding, which is one row again and again."""
    for rows, vocab in ((1, 1), (200, 97)):
        counts = torch.randint(0, 5, (rows + 1, vocab), generator=generator)
        near = torch.randint(_FULL - 2, _FULL + 2, counts.shape, generator=generator)
        counts = counts.where(torch.rand(counts.shape, generator=generator) < 0.5, near).to(torch.int16)
        table_rows = torch.randperm(rows, generator=generator)
        penalizes = torch.randint(0, 2, (rows,), generator=generator)
        table_rows[rows // 2 + 1 :] = rows
        penalizes[rows // 2 + 1 :] = 0
        yield {
            "counts": counts,
            "table_rows": table_rows,
            "tokens": torch.randint(vocab, (rows,), generator=generator),
            "penalizes": penalizes,
        }


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    whole = torch.empty(32, dtype=torch.int64, device="meta")
    counts = torch.empty(33, 128256, dtype=torch.int16, device="meta")
    yield {"counts": counts, "table_rows": whole, "tokens": whole, "penalizes": whole}


CHECKS = (
    OpCheck(
        "count_tokens",
        count_tokens_triton,
        count_tokens_reference,
        _examples,
        _production,
        ROUNDING,
        exact=True,
    ),
)
