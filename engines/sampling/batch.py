"""The batch that sampling steps see: rows, and which of them ask for what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engines.core import SamplingParams
from engines.sampling.state import SequenceState


class SamplingRow(NamedTuple):
    """One sequence at the moment its next token is chosen. A tuple: hundreds are made in every step."""

    id: str
    params: SamplingParams
    token_ids: Sequence[int]
    """Prompt and output so far. Of one sequence it only ever grows."""
    num_prompt_tokens: int
    """How many of them are the prompt's."""

    @property
    def drawn(self) -> bool:
        """Its token is drawn, not the likeliest: temperature and what follows it concern this row."""
        return self.params.temperature != 0.0 and self.params.num_beams == 1


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Rows whose logits are changed before the choice, and what is kept of their sequences."""

    rows: Sequence[SamplingRow]
    states: Sequence[SequenceState | None]
    """One a row; None where no step keeps anything."""
    drawn: Sequence[int]
    """Which rows are drawn."""


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
