"""Log-probabilities of prompt tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engines.core import PromptLogprob
from engines.mpi.runner.largest_step import SCORED_TOKENS
from lmi_kernels import row_logprobs


@dataclass(frozen=True, slots=True)
class PromptTargets:
    """Targets of a sequence whose plan has WANT_PROMPT_LOGPROBS."""

    next_token_ids: tuple[int, ...]
    """Prompt tokens that follow those of the chunk: as many as the chunk has, or one less when it ends the prompt."""
    num_top: int
    """Number of most likely tokens to report with each token."""


def score_prompts(
    rows: torch.Tensor,
    lens: Sequence[int],
    targets: Sequence[PromptTargets],
    head: Callable[[torch.Tensor], torch.Tensor | None],
    show_alive: Callable[[], None],
) -> list[list[PromptLogprob]]:
    """Return the log-probabilities of each chunk's next tokens: log-softmax of the model's logits in fp32.

    Args:
        rows: rows of all chunks among the wanted rows, [sum of lens], int32 or int64.
        lens: number of rows of each chunk.
        targets: one for each of `lens`; empty on other ranks than 0, which compute their part of the head.
        head: maps row indices, [n], to their logits: [n, vocab_size] on rank 0, None on the others.
        show_alive: called after each slice of rows, on every rank.
    """
    row_scores: list[PromptLogprob | None] = []
    wanted = _by_row(lens, targets) if targets else None
    for start in range(0, len(rows), SCORED_TOKENS):
        part = rows[start : start + SCORED_TOKENS]
        logits = head(part)
        if logits is not None and wanted is not None:
            row_scores += _score(logits, wanted[start : start + len(part)])
        show_alive()
    scores, start = [], 0
    for count in lens if wanted is not None else ():
        scores.append([score for score in row_scores[start : start + count] if score is not None])
        start += count
    return scores


def _by_row(lens: Sequence[int], targets: Sequence[PromptTargets]) -> list[tuple[int, int] | None]:
    """Return (next token, number of most likely tokens) for each row; None where no prompt token follows."""
    wanted: list[tuple[int, int] | None] = []
    for count, target in zip(lens, targets, strict=True):
        known = [(token, target.num_top) for token in target.next_token_ids]
        wanted += [*known, *[None] * (count - len(known))]
    return wanted


def _score(logits: torch.Tensor, wanted: Sequence[tuple[int, int] | None]) -> list[PromptLogprob | None]:
    """Return one result for each of `wanted`. logits: [n, vocab_size], any float dtype."""
    scores: list[PromptLogprob | None] = [None] * len(wanted)
    known = {row: want for row, want in enumerate(wanted) if want is not None}
    if known:
        next_ids = torch.tensor([token for token, _ in known.values()], device=logits.device)
        logprobs, tops = row_logprobs(logits, list(known), next_ids, [count for _, count in known.values()])
        for row, logprob, top in zip(known, logprobs, tops, strict=True):
            scores[row] = PromptLogprob(logprob, top)
    return scores
