"""Reading `/metrics`, and waiting until it says what it should."""

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


@dataclass(frozen=True, slots=True)
class Metrics:
    """One scrape."""

    samples: dict[str, float]
    """Sample name (`..._count`, `..._bucket` and so on included) to its value, summed over label sets; without those of
    single copies."""
    families: dict[str, str]
    """Metric family name, as in its TYPE line, to its type."""

    def __getitem__(self, name: str) -> float:
        return self.samples[name]

    @property
    def answered(self) -> bool:
        """Whether the engine answered in time; else its figures are missing."""
        return self.samples.get(ENGINE_UP, 1.0) == 1.0

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits, and every block is free or cached."""
        accounted = self[BLOCKS_FREE] + self[BLOCKS_CACHED]
        return self[RUNNING] == 0 and self[WAITING] == 0 and accounted == self[BLOCKS_TOTAL]

    def describe(self) -> str:
        names = (RUNNING, WAITING, BLOCKS_FREE, BLOCKS_CACHED, BLOCKS_TOTAL)
        return ", ".join(f"{name} {self.samples.get(name, float('nan')):g}" for name in names)


def parse_metrics(text: str) -> Metrics:
    """Read the Prometheus text format. Raises `ValueError` where it is not."""
    samples: dict[str, float] = {}
    families: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        families[family.name] = family.type
        for sample in family.samples:
            if "copy" in sample.labels:
                continue
            samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
    return Metrics(samples, families)


class HasMetrics(Protocol):
    def scrape(self) -> Metrics: ...


def wait_metrics(client: HasMetrics, holds: Callable[[Metrics], bool], timeout: float) -> Metrics:
    """Scrape until `holds` is true or `timeout` seconds are over; returns the last scrape, true or not.

    A scrape that a busy engine did not answer in time has none of its figures, and is not asked.
    """
    deadline = time.monotonic() + timeout
    while True:
        seen = client.scrape()
        if (seen.answered and holds(seen)) or time.monotonic() > deadline:
            return seen
        time.sleep(0.02)
