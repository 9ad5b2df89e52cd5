"""What a comparison has measured: plain data, nothing computed from several rounds."""

from __future__ import annotations

from dataclasses import dataclass

from container.measure.bench.figures import Figures
from container.measure.compare.configurations import Arm
from container.measure.compare.plan import Plan
from container.measure.compare.scrape import BatchSizes, KvUse


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round of one scenario on one configuration."""

    configuration: str
    scenario: str
    round: int
    """From 1."""
    figures: Figures
    token_ids: tuple[tuple[int, ...], ...]
    """By request, in the workload's order; empty ones where the dialect has no ids or the request failed."""
    batches: BatchSizes | None
    """None where the server says nothing of it."""
    kv: KvUse | None
    """None under an engine without a KV cache of its own, and where a round was too short for a look."""


@dataclass(frozen=True, slots=True)
class StayResult:
    """One server's life."""

    configuration: str
    rounds: tuple[int, ...]
    start_up_seconds: float
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was measured."""

    arms: tuple[Arm, ...]
    plan: Plan
    rounds: tuple[RoundResult, ...]
    """In the order in which they ran."""
    stays: tuple[StayResult, ...]

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def of(self, arm: str, scenario: str) -> tuple[RoundResult, ...]:
        """One configuration's rounds of a scenario, by number."""
        found = [
            result for result in self.rounds if (result.configuration, result.scenario) == (arm, scenario)
        ]
        return tuple(sorted(found, key=lambda result: result.round))

    @property
    def num_failed(self) -> int:
        """Requests that failed, over all rounds."""
        return sum(result.figures.num_errors for result in self.rounds)
