"""The batch that sampling steps see: rows, and which of them ask for what. Plain Python: schedulers make rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engines.core import SamplingParams
from engines.sampling.state import SequenceState


class SamplingRow(NamedTuple):
    """A sequence whose next token is to be chosen."""

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
