"""Servers with engine=Python: properties, and metrics of batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.dynamic_engine import generating_process
from tests.support.metrics import Metrics
from tests.support.server import Server

_WITHOUT_PREFIX = ("batch_size", "max_batch_delay", "job_queue_size")
RESTARTS = "lmi_generator_restarts_total"


def dynamic_properties(model: Path | str, **options: object) -> str:
    """A serving.properties for engine=Python. `options`: `option.*` keys, and batching keys without the prefix."""
    lines = {"engine": "Python", "option.model_id": str(model)}
    for name, value in options.items():
        key = name if name in _WITHOUT_PREFIX else f"option.{name}"
        lines[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(f"{key}={value}\n" for key, value in lines.items())


@dataclass(frozen=True, slots=True)
class Batches:
    """Number of batches, and of requests in them."""

    count: float
    requests: float

    def since(self, before: Batches) -> Batches:
        return Batches(self.count - before.count, self.requests - before.requests)


def batches(metrics: Metrics) -> Batches:
    return Batches(metrics["lmi_batch_size_count"], metrics["lmi_batch_size_sum"])


def find_generator(server: Server) -> psutil.Process | None:
    """The server's generating process, if it is running."""
    return generating_process(server.processes())
