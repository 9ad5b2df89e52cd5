"""The load selected on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from container.measure.bench.arrivals import Arrivals, Burst, OpenLoop, Users
from container.measure.bench.lengths import Exponential, Fixed, Lengths, RecordedLengths, Uniform, scale_count
from container.measure.bench.prefixes import scale_prefixes
from container.measure.bench.scenario import PRESETS, Scenario
from container.measure.bench.trace import read_trace
from container.measure.bench.workload import BenchError, Workload

LENGTHS = ("fixed", "spread")
PROCESSES = ("poisson", "constant", "gamma")
_LONGEST_ANSWER = 4
"""Longest answer as a multiple of the mean, for spread lengths."""


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """Command-line options; None if an option is not given. Given options override the preset or the trace."""

    preset: str | None = None
    trace: Path | None = None
    scale: float | None = None
    requests: int | None = None
    users: int | None = None
    ramp: float | None = None
    rate: float | None = None
    arrivals: str | None = None
    burstiness: float | None = None
    burst: bool = False
    lengths: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

    def given(self, *names: str) -> list[str]:
        """Return the given options among these fields, as typed on the command line."""
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) not in (None, False)]

    def scenario(self, default: Scenario) -> Scenario:
        """Return the load. default: the load without --preset and --trace. Raises BenchError."""
        if self.preset and self.trace:
            raise BenchError("--preset, --trace: mutually exclusive; give one of them")
        base = PRESETS[self.preset] if self.preset else read_trace(self.trace) if self.trace else default
        scaled = base.scaled(self.scale) if self.scale else base
        arrivals = self._arrivals(scaled.arrivals)
        workload = self._workload(scaled)
        if self.trace and workload.num_requests > base.workload.num_requests:
            available = base.workload.num_requests
            if self.requests:
                raise BenchError(
                    f"--requests: more than the trace has (got {self.requests}); allowed: at most {available}"
                )
            workload = replace(workload, num_requests=available)
        name = base.name if self.preset or self.trace else workload.title
        return Scenario(name, workload, arrivals)

    def _arrivals(self, base: Arrivals) -> Arrivals:
        kinds = [
            self.given("users", "ramp"),
            self.given("rate", "arrivals", "burstiness"),
            self.given("burst"),
        ]
        closed, opened, burst = kinds
        if sum(map(bool, kinds)) > 1:
            raise BenchError(
                f"{', '.join(closed + opened + burst)}: mutually exclusive; give one kind of load"
            )
        if closed:
            loop = base if isinstance(base, Users) else Users(0)
            users = self.users or loop.num_users
            if not users:
                raise BenchError("--ramp: requires --users with this load")
            return Users(users, self.ramp or loop.ramp)
        if opened:
            present = base if isinstance(base, OpenLoop) else OpenLoop(0.0)
            rate = self.rate or present.rate
            if not rate:
                raise BenchError(f"{opened[0]}: requires --rate with this load")
            return OpenLoop(rate, self._burstiness(present.burstiness))
        return Burst() if burst else base

    def _burstiness(self, default: float) -> float:
        if self.burstiness is not None and self.arrivals in ("poisson", "constant"):
            raise BenchError(
                f"--burstiness: not supported with --arrivals {self.arrivals}; allowed: with --arrivals gamma"
            )
        if self.arrivals == "gamma" and self.burstiness is None:
            raise BenchError("--arrivals gamma: requires --burstiness (1 is Poisson, lower is more bursty)")
        fixed = {"poisson": 1.0, "constant": math.inf}
        return self.burstiness or fixed.get(self.arrivals or "", default)

    def _workload(self, base: Scenario) -> Workload:
        workload = base.workload
        num_requests = self.requests or self._num_requests(base)
        prompts, outputs = _sent(workload.prompts, num_requests), _sent(workload.outputs, num_requests)
        factor = (self.input_tokens or prompts.mean) / prompts.mean
        return replace(
            workload,
            prompts=self._lengths(prompts, self.input_tokens, Uniform.around),
            outputs=self._lengths(outputs, self.output_tokens, _spread_answers),
            num_requests=num_requests,
            prefixes=scale_prefixes(workload.prefixes, factor),
        )

    def _num_requests(self, base: Scenario) -> int:
        """Return the default number of requests. The requests per user stay the same."""
        count = base.workload.num_requests
        if self.users and isinstance(base.arrivals, Users):
            return scale_count(count, self.users / base.arrivals.num_users)
        return count

    def _lengths(self, base: Lengths, mean: int | None, spread: Callable[[int], Lengths]) -> Lengths:
        """mean: the mean given on the command line; spread: makes the distribution of `--lengths spread`."""
        nominal = mean or scale_count(base.mean, 1)
        match self.lengths:
            case "fixed":
                return Fixed(nominal)
            case "spread":
                return spread(nominal)
        return base.scaled(mean / base.mean) if mean else base


def _sent(lengths: Lengths, num_requests: int) -> Lengths:
    """Return the lengths of the requests that are sent: of a trace, only the first ones."""
    return lengths.first(num_requests) if isinstance(lengths, RecordedLengths) else lengths


def _spread_answers(mean: int) -> Lengths:
    return Exponential(mean, _LONGEST_ANSWER * mean)
