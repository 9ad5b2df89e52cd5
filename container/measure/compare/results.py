"""Raw results of a comparison: all measurements, without statistics over rounds.

`lmi compare --json` writes these results and the statistics (`report.json_values`). docs/comparing.md lists the keys.
Times are in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

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
    """Arrival of the first token; None without a token."""
    last_token: float | None
    ended: float
    """Time at which the response was complete or abandoned."""
    prompt_tokens: int
    output_tokens: int
    error: str
    """Error text; empty if the request succeeded."""

    @property
    def ttft(self) -> float:
        """Time to first token; NaN without a token."""
        return math.nan if self.first_token is None else self.first_token - self.due

    @property
    def tpot(self) -> float:
        """Time per output token after the first; NaN for fewer than two tokens."""
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
    """Number of the round, from 1."""
    metrics: Figures
    token_ids: tuple[tuple[int, ...], ...]
    """Output token ids of each request, in the workload's order; empty without ids, or if the request failed."""
    batches: BatchSizes | None
    """Batch sizes; None if the server has no such metric."""
    kv: KvUse | None
    """KV cache use; None for an engine without its own KV cache, and for a round too short for a sample."""
    counters: RoundCounters = field(default_factory=RoundCounters)
    requests: tuple[RequestTiming, ...] = ()
    """Requests in the workload's order."""
    started: float = math.nan
    """Start on this machine's monotonic clock, which step traces use too (`engines/mpi/trace.py`)."""
    ended: float = math.nan
    step_trace: str = ""
    """File with the server's steps; empty if none was written."""


@dataclass(frozen=True, slots=True)
class ServerRun:
    """The lifetime of one server, or one use of a server that was already running."""

    configurations: tuple[str, ...]
    """Configurations that the server served, in order of first use; several if live settings were changed."""
    rounds: tuple[int, ...]
    start_up_seconds: float | None
    """Start-up time; None for a server that was already running."""
    peak_memory_bytes: int | None


class End(Enum):
    """What ended the rounds of a comparison."""

    AS_PLANNED = "as planned"
    SERVER_FAILED = "a server failed"
    INTERRUPTED = "a stop signal arrived"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All results of a comparison."""

    configs: tuple[Configuration, ...]
    plan: Plan
    rounds: tuple[RoundResult, ...]
    """Rounds in the order in which they ran."""
    server_runs: tuple[ServerRun, ...]
    stopped: str = ""
    """Reason why no more rounds were run."""
    end: End = End.AS_PLANNED
    """What ended the run. If not planned, `rounds` has the complete rounds before, and `stopped` the reason."""

    @property
    def num_rounds(self) -> int:
        return max((result.round for result in self.rounds), default=0)

    def of(self, config: str, scenario: str) -> tuple[RoundResult, ...]:
        """Return the rounds of one configuration and scenario, ordered by number."""
        found = [one for one in self.rounds if (one.configuration, one.scenario) == (config, scenario)]
        return tuple(sorted(found, key=lambda result: result.round))

    @property
    def num_failed(self) -> int:
        """Number of failed requests over all rounds."""
        return sum(result.metrics.num_errors for result in self.rounds)
