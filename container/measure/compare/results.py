"""Raw results of a comparison: everything that was measured, nothing computed from several rounds."""

from __future__ import annotations

from dataclasses import dataclass

from container.measure.bench.figures import Figures
from container.measure.compare.configurations import Configuration
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
    """By request, in the workload's order; empty where the dialect has no ids or the request failed."""
    batches: BatchSizes | None
    """None where the server has no such metric."""
    kv: KvUse | None
    """None for an engine without a KV cache of its own, and for a round too short for a sample."""


@dataclass(frozen=True, slots=True)
class StayResult:
    """The life of one server."""

    configuration: str
    rounds: tuple[int, ...]
    start_up_seconds: float
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All results."""

    configs: tuple[Configuration, ...]
    plan: Plan
    rounds: tuple[RoundResult, ...]
    """In the order in which they ran."""
    stays: tuple[StayResult, ...]

    def of(self, config: str, scenario: str) -> tuple[RoundResult, ...]:
        """Rounds of one configuration and scenario, by number."""
        found = [one for one in self.rounds if (one.configuration, one.scenario) == (config, scenario)]
        return tuple(sorted(found, key=lambda result: result.round))

    @property
    def num_failed(self) -> int:
        """Failed requests of all rounds."""
        return sum(result.figures.num_errors for result in self.rounds)
