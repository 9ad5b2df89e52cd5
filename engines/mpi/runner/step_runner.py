"""The interface of step runners, which lay plans out as tensors and compute them. One implementation per kind of
device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch

from engines.core import PromptLogprob, SampledToken
from engines.mpi.runner.prompt_logprobs import PromptTargets, score_prompts
from engines.mpi.scheduler.step_plan import StepPlan
from engines.sampling.batch import SamplingRow


class PendingTokens(Protocol):
    """Tokens that the device samples while the host goes on."""

    @property
    def host_rows(self) -> Sequence[int]:
        """Indices of the sampled sequences that the host has to sample from the logits."""

    def wait(self) -> list[SampledToken]:
        """Wait for the tokens: one for each sampled sequence. Those of `host_rows` are meaningless."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a step on rank 0; empty on other ranks."""

    logits: torch.Tensor | None = None
    """[sequences that the host samples, vocab_size], in the plan's order; None if there are none."""
    prompt_logprobs: list[list[PromptLogprob]] = field(default_factory=list)
    """One list for each sequence that wants them, in the plan's order."""
    pending_tokens: PendingTokens | None = None
    """Tokens that the device samples; None if it samples none."""
    greedy_tokens: Mapping[int, SampledToken] = field(default_factory=dict)
    """Tokens with the largest logit, by index of the sampled sequence, in order. A runner may choose those of sequences
    with WANT_LARGEST_ONLY."""


class StepRunner(Protocol):
    """Step runner of one rank. A step is one call of each method, in this order; the last two may be repeated for
    parts of it."""

    def update(self, plan: StepPlan) -> None:
        """Apply the permanent changes of a plan: block copies, then block tables. Called once per plan. After an
        error, the state of this rank differs from the others'."""

    def prepare(self, plan: StepPlan) -> Any:
        """Lay out a step as tensors, after `update`. Changes nothing and does not communicate, so ranks can agree on
        a failure before `compute`."""

    def compute(
        self, batch: Any, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        """Run the model. Computing a step again is harmless: the same keys and values go to the same slots.

        targets: on rank 0, one for each sequence whose prompt log-probabilities are wanted.
        rows: on rank 0, one for each sequence that samples.
        """


def host_result(
    last_rows: Sequence[int],
    scored: Sequence[range],
    targets: Sequence[PromptTargets],
    head: Callable[[torch.Tensor], torch.Tensor | None],
    show_alive: Callable[[], None],
) -> StepResult:
    """Return the result of a step whose tokens the host samples.

    last_rows: row of the last token of each sequence that samples, among the rows whose hidden states are wanted.
    scored: rows of each sequence whose prompt log-probabilities are wanted, among the same rows.
    targets: one for each of `scored`; empty on other ranks than 0.
    head: maps numbers of these rows, int32 [n], to their logits: [n, vocab_size] on rank 0, None on the others.
    show_alive: called again and again while prompts are scored.
    """
    scores: list[list[PromptLogprob]] = []
    if scored:
        lens = [len(rows) for rows in scored]
        scores = score_prompts(row_indices(chain(*scored)), lens, targets, head, show_alive)
    logits = head(row_indices(last_rows)) if last_rows else None
    return StepResult(logits, scores)


def row_indices(rows: Iterable[int]) -> torch.Tensor:
    """Return the numbers as int32."""
    return torch.from_numpy(np.fromiter(rows, dtype=np.int32))
