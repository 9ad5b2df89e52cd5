"""Blue/green updates: the steps in which traffic shifts to a new fleet, and the alarms that roll it back."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from container.endpoint.api import refused
from container.endpoint.figures import ServedRequest
from container.endpoint.fleet import Fleet
from container.endpoint.traffic import Traffic
from container.measure.bench.figures import Spread
from container.measure.numbers import percent, seconds

_POLL_SECONDS = 0.1
_MAX_STEP = 0.5
"""Largest traffic share of the new fleet before it gets all requests."""
_MIN_LINEAR_STEP = 0.1
"""Smallest traffic share of a step with Type=LINEAR."""
_Threshold = Annotated[float, msgspec.Meta(ge=0)]


class AlarmRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An alarm on the variants of a new fleet. Without a threshold, any 5xx response or timeout raises it."""

    error_rate: _Threshold | None = None
    """Maximum share of 5xx responses and timeouts."""
    latency_p90: _Threshold | None = None
    """Maximum 90th percentile of the latency, in seconds."""
    requests: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Minimum number of requests before the alarm is evaluated."""

    def reason(self, served: Sequence[ServedRequest]) -> str | None:
        """Return why the alarm is raised, or None."""
        if len(served) < self.requests:
            return None
        rate = sum(request.server_failed for request in served) / len(served)
        limit = 0.0 if self.error_rate is None and self.latency_p90 is None else self.error_rate
        if limit is not None and rate > limit:
            return f"{percent(rate)} of {len(served)} requests failed (threshold {percent(limit)})"
        latency = Spread.of([request.seconds for request in served if not request.abandoned]).p90
        if self.latency_p90 is not None and latency > self.latency_p90:
            return f"latency p90 is {seconds(latency)} (threshold {seconds(self.latency_p90)})"
        return None


class AlarmRaised(Exception):
    """An alarm rolls back a new fleet. The message names the alarm and the reason."""


class UpdateAborted(Exception):
    """The update is aborted because the endpoint stops."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Plan for shifting traffic from one fleet to another."""

    shares: tuple[float, ...]
    """Traffic share of the new fleet in each step; the last one is 1."""
    wait_seconds: float
    """Time to watch the alarms after each step."""
    termination_wait_seconds: float
    """Time to keep the old fleet after the last step."""
    alarms: Mapping[str, AlarmRule]

    @classmethod
    def of(cls, config: Mapping[str, Any], num_containers: int, rules: Mapping[str, AlarmRule]) -> Rollout:
        """Read a `DeploymentConfig`. Raises ApiError.

        num_containers: of the new fleet. rules: defined alarms; any 5xx response or timeout raises other alarms.
        """
        if "RollingUpdatePolicy" in config:
            raise refused(
                "DeploymentConfig.RollingUpdatePolicy: not supported; allowed: BlueGreenUpdatePolicy"
            )
        policy = config.get("BlueGreenUpdatePolicy", {})
        routing = policy.get("TrafficRoutingConfiguration", {})
        alarms = config.get("AutoRollbackConfiguration", {}).get("Alarms", ())
        return cls(
            _shares(routing, num_containers),
            routing.get("WaitIntervalInSeconds", 0),
            policy.get("TerminationWaitInSeconds", 0),
            {one["AlarmName"]: rules.get(one["AlarmName"], AlarmRule()) for one in alarms},
        )

    def run(self, traffic: Traffic, blue: Fleet, green: Fleet) -> None:
        """Shift traffic from `blue` to `green`, which is healthy. Raises AlarmRaised and UpdateAborted."""
        for share in self.shares:
            traffic.use(blue, green, share)
            self._watch(green, self.wait_seconds)
        traffic.use(green)
        if green.stopping.wait(self.termination_wait_seconds):
            raise UpdateAborted

    def _watch(self, fleet: Fleet, duration: float) -> None:
        end = time.monotonic() + duration
        while True:
            for name, rule in self.alarms.items():
                for variant in fleet.variants.values():
                    if reason := rule.reason(variant.figures.served()):
                        raise AlarmRaised(f"alarm {name} on variant {variant.name}: {reason}")
            remaining = end - time.monotonic()
            if remaining <= 0:
                return
            if fleet.stopping.wait(min(remaining, _POLL_SECONDS)):
                raise UpdateAborted


def _shares(routing: Mapping[str, Any], num_containers: int) -> tuple[float, ...]:
    kind = routing.get("Type", "ALL_AT_ONCE")
    if kind == "ALL_AT_ONCE":
        return (1.0,)
    field = "CanarySize" if kind == "CANARY" else "LinearStepSize"
    where = f"DeploymentConfig.BlueGreenUpdatePolicy.TrafficRoutingConfiguration.{field}"
    size = routing.get(field)
    if size is None:
        raise refused(f"{where}: missing; Type={kind} needs it")
    whole = 100 if size["Type"] == "CAPACITY_PERCENT" else num_containers
    if whole == 0:
        raise refused(f"{where}: at most half of the fleet (got {size['Value']} of 0 instances)")
    step = size["Value"] / whole
    if step > _MAX_STEP:
        raise refused(f"{where}: at most half of the fleet (got {percent(step)})")
    if kind == "CANARY":
        return (step, 1.0)
    if step < _MIN_LINEAR_STEP:
        raise refused(f"{where}: at least a tenth of the fleet (got {percent(step)})")
    return (*(step * number for number in range(1, math.ceil(1 / step))), 1.0)
