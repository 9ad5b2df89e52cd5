"""How long a step takes: what every prediction has in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class StepSeconds(NamedTuple):
    """The predicted time of one step."""

    host: float
    """To plan it and to launch it. On a GPU the device computes the step before meanwhile."""
    device: float
    """To compute it."""


class StepTimes(Protocol):
    """Predicts step times."""

    def seconds(self, starts: Sequence[int], counts: Sequence[int], num_sampled: int) -> StepSeconds:
        """Predict the time of a step.

        starts: [num_seqs]: tokens of each sequence that are computed already; counts: [num_seqs]: tokens of each in
        this step; num_sampled: sequences that gain a token.
        """

    def describe(self) -> str:
        """Where the times come from, in a sentence."""
