"""The report of a benchmark, as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from container.machine import versions
from container.measure.bench.dialects import DIALECTS
from container.measure.bench.figures import STATISTICS, Figures, failure
from container.measure.bench.load import LoadRun
from container.measure.bench.scenario import Scenario
from container.measure.bench.search import RateTrial, best_trial, open_bound, trials_table
from container.measure.bench.slo import Slo
from container.measure.bench.workload import BenchRequest
from container.measure.numbers import format_number, percent, seconds
from container.measure.output import Table
from container.measure.sections import Finding, Report, Section, failed_requests, package_versions


@dataclass(frozen=True, slots=True)
class BenchOrigin:
    """Everything needed to repeat a benchmark."""

    url: str
    dialect: str
    scenario: Scenario
    seed: int
    slo: Slo | None
    tokenizer: str
    """Folder or file of the tokenizer."""
    num_warm_up: int
    """Number of warm-up requests, which are not counted."""

    @property
    def title(self) -> str:
        return f"{self.url}, {self.dialect}: {self.scenario.describe()}, seed {self.seed}"

    @property
    def notes(self) -> str:
        return f"{self.num_warm_up} warm-up requests, not counted; tokenizer {self.tokenizer}"

    def json_values(
        self, table: Table, lines: Sequence[tuple[str, str]], findings: tuple[Finding, ...]
    ) -> dict[str, Any]:
        """Return the settings of the run, and the text of a report with this table and the lines below it."""
        packages = versions()
        bullets = (*(text for text, _ in lines), package_versions(packages))
        section = Section("Figures", tables=(dataclasses.replace(table, title=""),), bullets=bullets)
        return {
            **dataclasses.asdict(Report(table.title, "", findings, (section,))),
            **dataclasses.asdict(self),
            "load": self.scenario.describe(),
            "percentiles": "linear interpolation",
            "versions": packages,
        }


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The report of one run."""

    origin: BenchOrigin
    metrics: Figures

    @property
    def succeeded(self) -> bool:
        """Whether no request failed."""
        return not self.metrics.num_errors

    def json_values(self) -> dict[str, Any]:
        """Return the report as JSON values. Times are in seconds."""
        failed = failed_requests(self.metrics.num_errors, self.metrics.num_requests)
        values = self.origin.json_values(self.table(), self.lines(), failed)
        return {**values, "metrics": dataclasses.asdict(self.metrics)}

    def table(self) -> Table:
        """Return a table with the mean and percentiles of each time."""
        figures = self.metrics
        between = (
            "between tokens" if DIALECTS[self.origin.dialect].pieces_are_tokens else "between pieces of text"
        )
        times = (
            ("to the first token (TTFT)", figures.ttft),
            (f"{between} (ITL)", figures.gap),
            ("per token after the first (TPOT)", figures.tpot),
            ("whole request", figures.latency),
        )
        return Table(
            self.origin.title,
            ("", *STATISTICS),
            tuple((name, *(seconds(getattr(one, kind)) for kind in STATISTICS)) for name, one in times),
        )

    def lines(self) -> list[tuple[str, str]]:
        """Return the lines below the table, each with its style: rates, errors and notes."""
        figures = self.metrics
        late = f" ({figures.num_timeouts} timed out)" if figures.num_timeouts else ""
        lines = [
            (
                f"{figures.output_tokens_per_second:.2f} output tokens/s, {figures.requests_per_second:.3f} requests/s,"
                f" {figures.num_errors} of {figures.num_requests} requests failed{late}, {figures.wall_seconds:.2f} s",
                "bold",
            )
        ]
        if slo := self.origin.slo:
            lines.append(
                (
                    f"goodput {figures.goodput:.3f} requests/s: {percent(figures.share_within_slo)} of all requests"
                    f" within {slo.describe()}",
                    "bold",
                )
            )
        lines += [(self.origin.notes, ""), *self._own_lines()]
        return lines + [(f"error: {one.count} x {one.text}", "red") for one in figures.errors]

    def _own_lines(self) -> list[tuple[str, str]]:
        """Return the lines about the client."""
        figures = self.metrics
        lines = [
            (
                f"client: at most {1000 * figures.worst_lag_seconds:.1f} ms late, busy for"
                f" {100 * figures.client_cpu_share:.0f} % of the time",
                "",
            )
        ]
        if figures.client_limited:
            lines.append((f"note: {figures.client_limited}", "yellow"))
        return lines


@dataclass(frozen=True, slots=True)
class SearchReport:
    """The report of a search for the highest rate."""

    origin: BenchOrigin
    trials: tuple[RateTrial, ...]

    @property
    def succeeded(self) -> bool:
        """Whether any rate is sustained."""
        return best_trial(self.trials) is not None

    def json_values(self) -> dict[str, Any]:
        """Return the report as JSON values. Times are in seconds; the rate of a burst is null."""
        best = best_trial(self.trials)
        failed = sum(trial.metrics.num_errors for trial in self.trials)
        total = sum(trial.metrics.num_requests for trial in self.trials)
        found = Finding(
            "highest sustained rate",
            f"{format_number(best.rate)} requests/s." if best else "No rate is sustained.",
            "same" if best else "failed",
        )
        findings = (*failed_requests(failed, total), found)
        return {
            **self.origin.json_values(self.table(), self.lines(), findings),
            "best_rate": best.rate if best else None,
            "trials": [dataclasses.asdict(trial) for trial in self.trials],
        }

    def table(self) -> Table:
        origin, workload = self.origin, self.origin.scenario.workload
        return trials_table(
            f"{origin.url}, {origin.dialect}: {workload.num_requests} requests in each run,"
            f" {workload.describe()}, seed {origin.seed}",
            self.trials,
        )

    def lines(self) -> list[tuple[str, str]]:
        """Return the lines below the table, each with its style: the result and notes."""
        best = best_trial(self.trials)
        limits = f" within {self.origin.slo.describe()}" if self.origin.slo else ""
        found = (
            f"highest sustained rate{limits}: {format_number(best.rate)} requests/s,"
            f" {format_number(best.metrics.output_tokens_per_second)} output tokens/s"
            if best
            else f"no rate is sustained{limits}"
        )
        limited = dict.fromkeys(
            trial.metrics.client_limited for trial in self.trials if trial.metrics.client_limited
        )
        bound = open_bound(self.trials)
        stopped = f"the search ended after {len(self.trials)} runs, and the rate is {bound}; set --rate"
        return [
            (found, "bold"),
            (self.origin.notes, ""),
            *((f"note: {sentence}", "yellow") for sentence in [*limited, *([stopped] if bound else [])]),
        ]


REQUEST_COLUMNS = (
    *("run", "request", "user", "scheduled", "sent", "ttft", "tpot", "latency"),
    *("prompt_tokens", "output_tokens", "error"),
)


def request_rows(number: int, run: LoadRun, requests: Sequence[BenchRequest]) -> list[tuple[Any, ...]]:
    """Return a row of REQUEST_COLUMNS for each request of run `number`. Times are in seconds."""
    return [
        (
            *(number, outcome.index, outcome.user, outcome.scheduled, outcome.sent),
            *(outcome.ttft, outcome.tpot, outcome.latency, request.prompt_tokens, outcome.output_tokens),
            failure(outcome, request),
        )
        for outcome, request in zip(run.outcomes, requests, strict=True)
    ]
