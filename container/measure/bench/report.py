"""The report of one run, for people and for programs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from container.machine import versions
from container.measure.bench.dialects import DIALECTS
from container.measure.bench.figures import Figures
from container.measure.bench.workload import Workload
from container.measure.numbers import seconds
from container.measure.output import Table


@dataclass(frozen=True, slots=True)
class BenchReport:
    """One run and everything needed to repeat it."""

    url: str
    dialect: str
    workload: Workload
    tokenizer: str
    """Its folder or file."""
    num_warm_up: int
    """Requests that were sent before and are not counted."""
    figures: Figures

    def json_values(self) -> dict[str, Any]:
        """Times in seconds."""
        return {
            **dataclasses.asdict(self),
            "percentiles": "linear interpolation",
            "versions": versions(),
        }

    def table(self) -> Table:
        """Latency percentiles."""
        figures = self.figures
        between = "between tokens" if DIALECTS[self.dialect].pieces_are_tokens else "between pieces of text"
        times = (
            ("to the first token", figures.ttft),
            (between, figures.gap),
            ("whole request", figures.latency),
        )
        return Table(
            f"{self.url}, {self.dialect}: {self.workload.describe()}, seed {self.workload.seed}",
            ("", "p50", "p90", "p99"),
            tuple((name, *map(seconds, (one.p50, one.p90, one.p99))) for name, one in times),
        )

    def lines(self) -> list[tuple[str, str]]:
        """Rates, errors and notes below the table, each with its style."""
        figures = self.figures
        lines = [
            (
                f"{figures.output_tokens_per_second:.2f} output tokens/s, {figures.requests_per_second:.3f} requests/s,"
                f" {figures.num_errors} of {figures.num_requests} requests failed, {figures.wall_seconds:.2f} s",
                "bold",
            ),
            (f"{self.num_warm_up} warm-up requests, not counted; tokenizer {self.tokenizer}", ""),
            (
                f"client: at most {1000 * figures.worst_lag_seconds:.1f} ms late, busy for"
                f" {100 * figures.client_cpu_share:.0f} % of the time",
                "",
            ),
        ]
        if figures.client_limited:
            lines.append((f"note: {figures.client_limited}", "yellow"))
        return lines + [(f"error: {one.count} x {one.text}", "red") for one in figures.errors]
