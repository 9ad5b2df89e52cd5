"""What is measured: this server in some configuration, or a peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from container.measure.bench.load import LoadRun
from container.measure.bench.workload import BenchRequest


class Unavailable(Exception):
    """A peer cannot be had on this machine. The text says why."""


class Broken(Exception):
    """An engine did not start, or ended in the middle of a run. The text ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a reader must know to compare figures."""

    weights: str
    """How weights are computed with, and stored where that differs."""
    kv_cache: str
    """Precision of keys and values, and their room."""
    interface: str
    """`HTTP` with streaming, or `in process`: without a server, which is the peer's advantage."""
    weight_bytes: float
    """Bytes read for each weight in a decode step."""
    arithmetic: str = "fp32"
    """`fp32` or `int8`: which peak its matrix products are measured against."""
    notes: str = ""
    versions: dict[str, str] = field(default_factory=dict)


class Running(Protocol):
    """A contender that takes requests."""

    pid: int
    """Of the process that started all others of it."""
    start_up_seconds: float

    def load(self, requests: Sequence[BenchRequest], num_users: int) -> LoadRun:
        """Run a closed loop of users. Raises: Broken."""

    def end(self) -> None:
        """End all of its processes; harmless when they have ended."""


class Contender(Protocol):
    """One that can be started again and again."""

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> Facts: ...

    def start(self, log: Path) -> Running:
        """Return when it takes requests. Raises: Broken."""
