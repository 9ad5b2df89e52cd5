"""How likely the model finds a prompt's own tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engines.core import PromptLogprob

SLICE_ROWS = 128
"""Rows whose logits are made at once: a long prompt's, over a large vocabulary, would be gigabytes."""


@dataclass(frozen=True, slots=True)
class PromptTargets:
    """Of a sequence whose plan says WANT_PROMPT_LOGPROBS."""

    next_token_ids: tuple[int, ...]
    """The prompt tokens that follow the chunk's: as many as the chunk has, or one less when it ends the prompt."""
    num_top: int
    """How many of the likeliest come with each."""


def score_prompts(
    rows: torch.Tensor,
    lens: Sequence[int],
    targets: Sequence[PromptTargets] | None,
    head: Callable[[torch.Tensor], torch.Tensor | None],
) -> list[list[PromptLogprob]]:
    """Log-probabilities of each chunk's next tokens, log-softmax in fp32 of the model's logits.

    Args:
        rows, lens: as in `Batch`.
        targets: one for each of `lens`, on rank 0; None on the others, which compute their part of the head.
        head: numbers of rows, [n] -> their logits, [n, vocab_size], on rank 0, None on the others.
    """
    found: list[PromptLogprob | None] = []
    wanted = None if targets is None else _by_row(lens, targets)
    for start in range(0, len(rows), SLICE_ROWS):
        part = rows[start : start + SLICE_ROWS]
        logits = head(part)
        if logits is not None and wanted is not None:
            found += _score(logits, wanted[start : start + len(part)])
    scores, start = [], 0
    for count in lens if wanted is not None else ():
        scores.append([score for score in found[start : start + count] if score is not None])
        start += count
    return scores


def _by_row(lens: Sequence[int], targets: Sequence[PromptTargets]) -> list[tuple[int, int] | None]:
    """(next token, how many of the likeliest) of each row; None where no prompt token follows."""
    wanted: list[tuple[int, int] | None] = []
    for count, target in zip(lens, targets, strict=True):
        known = [(token, target.num_top) for token in target.next_token_ids]
        wanted += [*known, *[None] * (count - len(known))]
    return wanted


def _score(logits: torch.Tensor, wanted: Sequence[tuple[int, int] | None]) -> list[PromptLogprob | None]:
    """logits: [n, vocab_size], any float dtype; one result for each of `wanted`."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    next_ids = torch.tensor([want[0] if want else 0 for want in wanted], device=logits.device)
    own = logprobs.gather(1, next_ids[:, None])[:, 0].tolist()
    most = max((want[1] for want in wanted if want), default=0)
    values, ids = logprobs.topk(min(most, logprobs.shape[1]), dim=-1)
    top_values, top_ids = values.tolist(), ids.tolist()
    return [
        want
        and PromptLogprob(own[i], tuple(zip(top_ids[i][: want[1]], top_values[i][: want[1]], strict=True)))
        for i, want in enumerate(wanted)
    ]
