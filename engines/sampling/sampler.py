"""Draw the next token of each row, vectorised over the batch, each by its own parameters and random stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engines.sampling.batch import SamplingBatch, SamplingRow
from engines.sampling.random_stream import uniform
from engines.sampling.repetition_penalty import repetition_penalty
from engines.sampling.temperature import temperature
from engines.sampling.top_k import top_k
from engines.sampling.top_p import top_p

LogitsStep = Callable[[torch.Tensor, SamplingBatch], torch.Tensor]

STEPS: tuple[LogitsStep, ...] = (repetition_penalty, temperature, top_k, top_p)
"""In the order of transformers' `generate`."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One row's token."""

    token_id: int
    logprob: float | None
    """Under the model's distribution before any step; None where not asked for."""
    finite: bool
    """False when the row's logits hold NaN or +-inf; the token means nothing then."""


class Sampler:
    """Holds, for sequences that penalise repetition, which tokens they have seen."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._seen: dict[str, tuple[torch.Tensor, int]] = {}

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[Sampled]:
        """logits: [num_rows, vocab_size], any float dtype, row i for `rows[i]` -> one token each, in order."""
        logits = logits.float()
        # A sum is not finite as soon as one term is not; overflow of finite logits is out of reach in fp32.
        finite = logits.sum(dim=-1).isfinite().tolist()
        seen = self._seen_mask(rows)
        if seen is None and all(row.params.greedy for row in rows):
            chosen = logits.argmax(dim=-1)
        else:
            chosen = self._choose(logits, SamplingBatch(rows, seen))
        logprobs = self._logprobs(logits, chosen, rows)
        return [
            Sampled(token, logprob, ok)
            for token, logprob, ok in zip(chosen.tolist(), logprobs, finite, strict=True)
        ]

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended. Idempotent."""
        self._seen.pop(sequence_id, None)

    def _choose(self, logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
        for step in STEPS:
            logits = step(logits, batch)
        chosen = logits.argmax(dim=-1)
        drawn = [i for i, row in enumerate(batch.rows) if not row.params.greedy]
        if drawn:
            index = torch.tensor(drawn, device=logits.device)
            numbers = [uniform(batch.rows[i].params.seed, len(batch.rows[i].token_ids)) for i in drawn]
            chosen[index] = _draw(
                logits[index], torch.tensor(numbers, dtype=torch.float64, device=logits.device)
            )
        return chosen

    def _seen_mask(self, rows: Sequence[SamplingRow]) -> torch.Tensor | None:
        if all(row.params.repetition_penalty == 1.0 for row in rows):
            return None
        nothing = torch.zeros(self._vocab_size, dtype=torch.bool, device=self._device)
        return torch.stack(
            [nothing if row.params.repetition_penalty == 1.0 else self._seen_of(row) for row in rows]
        )

    def _seen_of(self, row: SamplingRow) -> torch.Tensor:
        mask, known = self._seen.get(row.id, (None, 0))
        if mask is None:
            mask = torch.zeros(self._vocab_size, dtype=torch.bool, device=self._device)
        mask[torch.tensor(row.token_ids[known:], dtype=torch.int64, device=self._device)] = True
        self._seen[row.id] = (mask, len(row.token_ids))
        return mask

    def _logprobs(
        self, logits: torch.Tensor, chosen: torch.Tensor, rows: Sequence[SamplingRow]
    ) -> list[float | None]:
        wanted = [i for i, row in enumerate(rows) if row.params.logprobs]
        result: list[float | None] = [None] * len(rows)
        if wanted:
            index = torch.tensor(wanted, device=logits.device)
            picked = logits if len(wanted) == len(rows) else logits[index]
            values = picked.gather(1, chosen[index, None])[:, 0] - picked.logsumexp(dim=-1)
            for i, value in zip(wanted, values.tolist(), strict=True):
                result[i] = value
        return result


def _draw(logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Invert each row's cumulative distribution at its number. logits: [n, vocab]; numbers: [n] in [0, 1)."""
    cumulative = logits.double().softmax(dim=-1).cumsum(dim=-1)
    # Scaled by the total, whose rounding else leaves numbers that no token answers to; `right` passes over
    # tokens of probability 0.
    drawn = torch.searchsorted(cumulative, (numbers * cumulative[:, -1])[:, None], right=True)[:, 0]
    return drawn.clamp_(max=logits.shape[-1] - 1)
