"""Contenders of a benchmark: this server in some configuration, or a peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from container.measure.bench.load import LoadRun
from container.measure.bench.workload import BenchRequest


class Unavailable(Exception):
    """A peer is not available on this machine. The message gives the reason."""


class Broken(Exception):
    """An engine did not start, or exited during a run. The message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Settings of a contender that a reader needs to compare figures."""

    weights: str
    """Precision of the weights in computation, and in storage if that differs."""
    kv_cache: str
    """Precision of keys and values, and the size of the cache."""
    interface: str
    """`HTTP` with streaming, or `in process`: without a server, which is an advantage of the peer."""
    weight_bytes: float
    """Bytes read per weight in a decode step."""
    arithmetic: str = "fp32"
    """`fp32` or `int8`: the peak that matrix products are compared with."""
    notes: str = ""
    versions: dict[str, str] = field(default_factory=dict)


class Running(Protocol):
    """A started contender that accepts requests."""

    pid: int
    """Root of the contender's process tree."""
    start_up_seconds: float

    def load(self, requests: Sequence[BenchRequest], num_users: int) -> LoadRun:
        """Run a closed loop of users. Raises: Broken."""

    def end(self) -> None:
        """Stop all processes of the contender. Does nothing if they have exited."""


class Contender(Protocol):
    """A contender that can be started any number of times."""

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> Facts: ...

    def start(self, log: Path) -> Running:
        """Start the contender and wait until it accepts requests. Raises: Broken."""
