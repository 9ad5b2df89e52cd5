"""Interface of all predictions of step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from container.measure.numbers import format_number


class StepSeconds(NamedTuple):
    """The predicted time of one step."""

    host: float
    """Time to plan and launch the step. On a GPU, the device computes the previous step meanwhile."""
    device: float
    """Time to compute the step."""


class StepTimes(Protocol):
    """Predicts step times."""

    def seconds(self, starts: Sequence[int], counts: Sequence[int], num_sampled: int) -> StepSeconds:
        """Predict the time of a step.

        starts: [num_seqs], computed tokens of each sequence. counts: [num_seqs], tokens of each sequence in this step.
        num_sampled: sequences that gain a token.
        """

    def describe(self) -> str:
        """Return the source of the times as a phrase."""


@dataclass(frozen=True, slots=True)
class ScaledTimes:
    """Predicted times multiplied by a constant factor."""

    times: StepTimes
    factor: float
    source: str
    """How the factor was determined, for `describe`."""

    def seconds(self, starts: Sequence[int], counts: Sequence[int], num_sampled: int) -> StepSeconds:
        """See `StepTimes`."""
        host, device = self.times.seconds(starts, counts, num_sampled)
        return StepSeconds(host * self.factor, device * self.factor)

    def describe(self) -> str:
        return f"{self.times.describe()}; all times multiplied by {format_number(self.factor)} to match {self.source}"
