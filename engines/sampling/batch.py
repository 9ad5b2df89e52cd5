"""The batch that sampling steps see: sampling parameters as columns, one row a sequence to be sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engines.core import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One sequence at the moment its next token is drawn."""

    id: str
    params: SamplingParams
    token_ids: Sequence[int]
    """Prompt and output so far."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Rows and what all steps share."""

    rows: Sequence[SamplingRow]
    seen: torch.Tensor | None
    """[num_rows, vocab_size], bool: tokens that stand in the sequence; None when no row penalises repetition."""

    def column(self, name: str, device: torch.device) -> torch.Tensor:
        """One sampling parameter over the batch: [num_rows, 1], fp32."""
        values = [float(getattr(row.params, name)) for row in self.rows]
        return torch.tensor(values, dtype=torch.float32, device=device)[:, None]
