"""Read `/metrics`, and wait until a condition holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.parser import text_string_to_metric_families

BLOCKS_TOTAL = "lmi_kv_blocks_total"
BLOCKS_FREE = "lmi_kv_blocks_free"
BLOCKS_CACHED = "lmi_kv_blocks_cached"
RUNNING = "lmi_requests_running"
WAITING = "lmi_requests_waiting"
STEPS = "lmi_steps_total"
ENGINE_UP = "lmi_engine_up"
RESTARTS = "lmi_generator_restarts_total"


@dataclass(frozen=True, slots=True)
class Metrics:
    """One scrape."""

    samples: dict[str, float]
    """Values by sample name (including `..._count`, `..._bucket` and so on), summed over label sets."""
    families: dict[str, str]
    """Types by metric family name, as in the TYPE lines."""

    def __getitem__(self, name: str) -> float:
        return self.samples[name]

    @property
    def answered(self) -> bool:
        """Whether the engine answered in time. Otherwise its metrics are missing."""
        return self.samples.get(ENGINE_UP, 1.0) == 1.0

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits, and every block is free or cached."""
        unused = self[BLOCKS_FREE] + self[BLOCKS_CACHED]
        return self[RUNNING] == 0 and self[WAITING] == 0 and unused == self[BLOCKS_TOTAL]

    def describe(self) -> str:
        names = (RUNNING, WAITING, BLOCKS_FREE, BLOCKS_CACHED, BLOCKS_TOTAL)
        return ", ".join(f"{name} {self.samples.get(name, float('nan')):g}" for name in names)


@dataclass(frozen=True, slots=True)
class Batches:
    """Number of batches of engine=Python, and of requests in them."""

    count: float
    requests: float

    def since(self, before: Batches) -> Batches:
        return Batches(self.count - before.count, self.requests - before.requests)


def batches(metrics: Metrics) -> Batches:
    return Batches(metrics["lmi_batch_size_count"], metrics["lmi_batch_size_sum"])


def parse_metrics(text: str) -> Metrics:
    """Parse the Prometheus text format. Raises `ValueError` if it is invalid."""
    samples: dict[str, float] = {}
    families: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        families[family.name] = family.type
        for sample in family.samples:
            samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
    return Metrics(samples, families)


class HasMetrics(Protocol):
    def scrape(self) -> Metrics: ...


def wait_metrics(client: HasMetrics, holds: Callable[[Metrics], bool], timeout: float) -> Metrics:
    """Scrape until `holds` is true or `timeout` seconds have passed. Return the last scrape in either case.

    Scrapes that a busy engine does not answer in time lack its metrics, and are not passed to `holds`.
    """
    deadline = time.monotonic() + timeout
    while True:
        metrics = client.scrape()
        if (metrics.answered and holds(metrics)) or time.monotonic() > deadline:
            return metrics
        time.sleep(0.02)
