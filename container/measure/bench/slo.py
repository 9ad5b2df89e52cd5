"""Latency limits (SLO), such as `ttft=500ms,tpot=50ms,latency=2s`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from container.measure.bench.workload import BenchError
from container.measure.numbers import SECONDS, read_quantity, seconds
from lmi_server.values.nearest import nearest

_EXAMPLE = "such as ttft=500ms,tpot=50ms,latency=2s"


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper limits for one request, in seconds; infinite if there is no limit."""

    ttft: float = math.inf
    tpot: float = math.inf
    """Time per output token after the first."""
    latency: float = math.inf

    def describe(self) -> str:
        limits = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{name} {seconds(limit)}" for name, limit in limits.items() if limit < math.inf)


def parse_slo(text: str) -> Slo:
    """Parse the value of `--slo`. Raises BenchError."""
    names = [field.name for field in fields(Slo)]
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in names:
            near = nearest(name, names)
            hint = f"; did you mean {near}?" if near else ""
            raise BenchError(
                f"--slo: unknown limit (got {name}){hint}; allowed: {', '.join(names)}, {_EXAMPLE}"
            )
        if name in limits:
            raise BenchError(f"--slo: {name} is given twice (got {text})")
        limits[name] = read_quantity(value, SECONDS)
        if not limits[name] > 0:
            raise BenchError(
                f"--slo: {name} is not a time (got {value}); allowed: a number with ms or s, {_EXAMPLE}"
            )
    return Slo(**limits)
