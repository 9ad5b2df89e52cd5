"""Reference for `count_tokens` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels.sampling.count_tokens import MAX_TOKEN_COUNT, count_tokens_
from tests.kernels.references.check import Inputs, OpCheck, Results


def count_tokens_reference(
    counts: torch.Tensor, table_rows: torch.Tensor, tokens: torch.Tensor, penalizes: torch.Tensor
) -> Results:
    counts = counts.clone()
    for row, token, enabled in zip(table_rows.tolist(), tokens.tolist(), penalizes.tolist(), strict=True):
        if enabled and counts[row, token] >> 1 < MAX_TOKEN_COUNT:
            counts[row, token] += 2
    return (counts,)


def _launch(counts: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
    count_tokens_(counts, **inputs)
    return counts


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield counts at the maximum and just below it, and padding, which repeats one row of the table."""
    for rows, vocab in ((1, 1), (200, 97)):
        counts = torch.randint(0, 5, (rows + 1, vocab), generator=generator)
        nearly_full = 2 * MAX_TOKEN_COUNT + torch.randint(-2, 2, counts.shape, generator=generator)
        counts = counts.where(torch.rand(counts.shape, generator=generator) < 0.5, nearly_full).to(
            torch.int16
        )
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
    integers = torch.empty(32, dtype=torch.int64, device="meta")
    counts = torch.empty(33, 128256, dtype=torch.int16, device="meta")
    yield {"counts": counts, "table_rows": integers, "tokens": integers, "penalizes": integers}


CHECKS = (OpCheck("count_tokens", _launch, count_tokens_reference, _examples, _production, exact=True),)
