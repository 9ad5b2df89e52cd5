"""Some rows of a batch's logits, and numbers that go with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


@contextmanager
def rows_of(logits: torch.Tensor, rows: Sequence[int]) -> Iterator[torch.Tensor]:
    """Some rows of the logits, to be changed in place: the logits themselves when it is all of them.

    logits: [num_rows, vocab_size]; rows: ascending, each once -> [len(rows), vocab_size].
    """
    if len(rows) == len(logits):
        yield logits
        return
    index = torch.tensor(rows, device=logits.device)
    picked = logits[index]
    yield picked
    logits.index_copy_(0, index, picked)


def column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    """One number a row: [len(values), 1], of the dtype and on the device of `like`."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
