"""Raw results of a comparison: everything that was measured, nothing computed from several rounds.

`lmi compare --json` writes them, with what is computed from them (`report.json_values`). docs/comparing.md lists the
keys. Times are in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from container.measure.bench.figures import Figures
from container.measure.bench.load import RequestOutcome
from container.measure.bench.workload import BenchRequest
from container.measure.compare.configurations import Configuration
from container.measure.compare.plan import Plan
from container.measure.compare.scrape import BatchSizes, KvUse, RoundCounters


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One request as the client saw it. Times are seconds since the start of the round's load."""

    due: float
    sent: float
    first_token: float | None
    """None without a token."""
    last_token: float | None
    ended: float
    """When the answer was complete, or given up."""
    prompt_tokens: int
    output_tokens: int
    error: str
    """Empty if it succeeded."""

    @property
    def ttft(self) -> float:
        """NaN without a token."""
        return math.nan if self.first_token is None else self.first_token - self.due

    @property
    def tpot(self) -> float:
        """Time per output token after the first; NaN for less than two tokens."""
        if self.first_token is None or self.last_token is None or self.output_tokens < 2:
            return math.nan
        return (self.last_token - self.first_token) / (self.output_tokens - 1)

    @property
    def latency(self) -> float:
        return self.ended - self.due

    @classmethod
    def of(cls, outcome: RequestOutcome, request: BenchRequest, error: str) -> RequestTiming:
        return cls(
            due=outcome.scheduled,
            sent=outcome.sent,
            first_token=next(iter(outcome.token_times), None),
            last_token=next(reversed(outcome.token_times), None),
            ended=outcome.ended,
            prompt_tokens=request.prompt_tokens,
            output_tokens=outcome.output_tokens,
            error=error,
        )


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
    counters: RoundCounters = field(default_factory=RoundCounters)
    requests: tuple[RequestTiming, ...] = ()
    """In the workload's order."""
    began: float = math.nan
    """On this machine's monotonic clock, as the times in step traces (`engines/mpi/trace.py`)."""
    ended: float = math.nan
    step_trace: str = ""
    """The file with the server's steps; empty if none was written."""


@dataclass(frozen=True, slots=True)
class StayResult:
    """The life of one server, or one use of a server that was running before."""

    configurations: tuple[str, ...]
    """Those that it served, that which it started with first: several where live settings were changed."""
    rounds: tuple[int, ...]
    start_up_seconds: float | None
    """None for a server that was running before."""
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All results."""

    configs: tuple[Configuration, ...]
    plan: Plan
    rounds: tuple[RoundResult, ...]
    """In the order in which they ran."""
    stays: tuple[StayResult, ...]
    stopped: str = ""
    """Why no more rounds were run."""

    @property
    def num_rounds(self) -> int:
        return max((result.round for result in self.rounds), default=0)

    def of(self, config: str, scenario: str) -> tuple[RoundResult, ...]:
        """Rounds of one configuration and scenario, by number."""
        found = [one for one in self.rounds if (one.configuration, one.scenario) == (config, scenario)]
        return tuple(sorted(found, key=lambda result: result.round))

    @property
    def num_failed(self) -> int:
        """Failed requests of all rounds."""
        return sum(result.figures.num_errors for result in self.rounds)
