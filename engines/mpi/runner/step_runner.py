"""What lays plans out as tensors and computes them: one implementation for each kind of device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from engines.core import PromptLogprob, SampledToken
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.scheduler.step_plan import StepPlan
from engines.sampling.batch import SamplingRow


class Choices(Protocol):
    """Tokens that a device chooses while the host goes on."""

    @property
    def host_rows(self) -> Sequence[int]:
        """Of the sampled sequences those that the host has to choose for, from the logits."""

    def take(self) -> list[SampledToken]:
        """Wait for them: one for each sampled sequence, of which those of `host_rows` mean nothing."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave, on rank 0; other ranks' are empty."""

    logits: torch.Tensor | None = None
    """[num_sampled, vocab_size], in the plan's order; None when the host chooses for no sequence."""
    prompt_logprobs: list[list[PromptLogprob]] = field(default_factory=list)
    """One list for each sequence that asked, in the plan's order."""
    choices: Choices | None = None
    """Tokens that the device chooses; None where it chooses none."""


class LaidOut(Protocol):
    """A step as tensors: what `prepare` gives `compute`."""

    @property
    def prompt_lens(self) -> tuple[int, ...]:
        """Rows whose next token's log-probability is wanted, of each sequence that wants them."""


class StepRunner(Protocol):
    """One rank's. A step is one call of each, in this order; the last two may be repeated for parts of it."""

    def update(self, plan: StepPlan) -> None:
        """Carry out what a plan changes for good: blocks zeroed, then copied, then block tables. Once a plan; when it
        fails, this rank's state is not that of the others any more."""

    def prepare(self, plan: StepPlan) -> LaidOut:
        """Lay a step, whose updates are done, out as tensors. Changes nothing and says nothing to other ranks: what
        goes wrong here can be agreed on before `compute`."""

    def compute(
        self, batch: Any, targets: Sequence[PromptTargets] = (), rows: Sequence[SamplingRow] = ()
    ) -> StepResult:
        """Run the model. Computing a step again is harmless: the same keys and values go to the same slots.

        targets: on rank 0, one for each sequence whose prompt's log-probabilities are wanted.
        rows: on rank 0, one for each sequence that samples.
        """
