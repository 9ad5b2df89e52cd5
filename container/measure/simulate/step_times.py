"""How long a step takes: what every prediction has in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from container.measure.numbers import number


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


@dataclass(frozen=True, slots=True)
class ScaledTimes:
    """Predicted times that are all too short or too long by the same factor."""

    times: StepTimes
    factor: float
    source: str
    """What the factor was found by."""

    def seconds(self, starts: Sequence[int], counts: Sequence[int], num_sampled: int) -> StepSeconds:
        """See `StepTimes`."""
        host, device = self.times.seconds(starts, counts, num_sampled)
        return StepSeconds(host * self.factor, device * self.factor)

    def describe(self) -> str:
        return f"{self.times.describe()}; all times {number(self.factor)}, {self.source}"
