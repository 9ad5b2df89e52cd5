"""The batch that sampling steps work on. Plain Python: schedulers make rows."""

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


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Rows whose logits steps change before the choice."""

    rows: Sequence[SamplingRow]
    states: Sequence[SequenceState | None]
    """The state of each row; None where no step needs one."""
