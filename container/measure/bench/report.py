"""The figures of a run for people and for programs."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from container.measure.bench.dialects import DIALECTS
from container.measure.bench.figures import Figures
from container.measure.bench.workload import Workload

_PACKAGES = ("lmi-server", "tokenizers", "urllib3")


@dataclass(frozen=True, slots=True)
class BenchReport:
    """One run and all that is needed to repeat it."""

    url: str
    dialect: str
    workload: Workload
    tokenizer: str
    """Its folder or file."""
    num_warm_up: int
    """Requests that were sent before and are not counted."""
    figures: Figures

    def to_json(self) -> str:
        """Times in seconds; null where there is no figure."""
        values = asdict(self)
        return json.dumps(
            _without_nan({**values, "percentiles": "linear interpolation", "versions": versions()}), indent=2
        )

    def print_to(self, console: Console) -> None:
        """A table, and below it the rates, the errors and what else is to be known."""
        title = f"{self.url}, {self.dialect}: {self.workload.describe()}, seed {self.workload.seed}"
        for part in (Text(title, style="bold"), self._table(), *self._lines()):
            # Lines stay whole, however narrow the terminal: paths in them are there to be copied.
            console.print(part, soft_wrap=isinstance(part, Text))

    def _lines(self) -> list[Text]:
        figures = self.figures
        rates = (
            f"{figures.output_tokens_per_second:.2f} output tokens/s, {figures.requests_per_second:.3f} requests/s, "
            f"{figures.num_errors} of {figures.num_requests} requests failed, {figures.wall_seconds:.2f} s"
        )
        client = (
            f"the client was late by at most {1000 * figures.worst_lag_seconds:.1f} ms "
            f"and computed for {100 * figures.client_cpu_share:.0f} % of the time"
        )
        lines = [
            Text(rates, style="bold"),
            Text(f"{self.num_warm_up} requests to warm up, not counted; tokenizer {self.tokenizer}"),
            Text(client),
        ]
        if figures.client_limited:
            lines.append(Text(f"note: {figures.client_limited}", style="yellow"))
        return lines + [Text(f"error: {one.count} x {one.text}", style="red") for one in figures.errors]

    def _table(self) -> Table:
        figures = self.figures
        table = Table("", *(Column(name, justify="right") for name in ("p50", "p90", "p99")))
        between = "between tokens" if DIALECTS[self.dialect].pieces_are_tokens else "between pieces of text"
        for name, spread in (
            ("to the first token", figures.ttft),
            (between, figures.gap),
            ("whole request", figures.latency),
        ):
            table.add_row(name, *map(duration, (spread.p50, spread.p90, spread.p99)))
        return table


def duration(seconds: float) -> str:
    """For a table; a dash where there is no figure."""
    if math.isnan(seconds):
        return "-"
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def versions() -> dict[str, str]:
    """What this client is made of."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a checkout that is not installed
            found[name] = "not installed"
    return found


def _without_nan(value: Any) -> Any:
    """JSON knows no NaN."""
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value
