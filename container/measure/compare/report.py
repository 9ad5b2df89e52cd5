"""The report of a comparison, as text and as JSON."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from container.machine import Machine, describe, versions
from container.measure.compare import attribution, tables
from container.measure.compare.caveats import caveats
from container.measure.compare.configurations import Configuration
from container.measure.compare.results import Comparison, End, ServerRun
from container.measure.compare.summary import MEASURES, counters, equality, occupancy, over_rounds, ratio
from container.measure.compare.verdict import headline, in_words
from container.measure.output import Table
from container.measure.sections import Report, Section, failed_requests, package_versions

_HOW_TO_READ = """\
Figures are medians over the rounds, with the smallest and the largest value in brackets. Counts, such as failed
requests and responses with the same tokens, are totals. Inside the servers, KV slots and their waste are medians; batch
sizes and shares of tokens are those of all rounds together. A ratio is the geometric mean over the rounds: in each
round both configurations get the same requests. Of ten rounds or more, the tenth with the largest ratios and the tenth
with the smallest do not count. Its 95 % interval, in brackets, is a paired t-interval on logarithms, corrected
(Bonferroni) for the number of ratios in this report: if the configurations do not differ at all, at most one report in
twenty shows any difference. A difference is reported when its interval excludes 1. "This run could detect" is the
smallest difference that an interval of that width would detect. Times are measured by the client, from the scheduled
send time of a request. A KV slot holds one token; slots are sampled twice a second, and not reported for engines that
leave the KV cache to transformers. Peak memory is the sum of the peak resident set sizes of all processes; shared pages
are counted in each process."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Everything that a reader needs to repeat a comparison."""

    command: str
    when: str
    """Start time, UTC, to the minute."""
    machine: str
    versions: dict[str, str]


def make_provenance(command: str, machine: Machine) -> Provenance:
    """Record the current time, the machine and the package versions."""
    return Provenance(
        command=command,
        when=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        machine=describe(machine),
        versions=versions(),
    )


def make_report(comparison: Comparison, provenance: Provenance, extra: Sequence[Section] = ()) -> Report:
    """Return the whole report, which is self-contained. extra: sections to add after the scenarios."""
    *names, last = [config.name for config in comparison.configs]
    num_requests = sum(result.metrics.num_requests for result in comparison.rounds)
    when, machine = provenance.when, provenance.machine
    return Report(
        title=f"Comparison of {', '.join(names)} and {last}",
        lead=f"{len(comparison.configs)} configurations under the same load, {when}, on {machine}",
        findings=(
            *failed_requests(comparison.num_failed, num_requests),
            *headline(comparison),
            *attribution.findings(comparison),
        ),
        sections=(
            Section("Summary", tables=(tables.short_table(comparison),)),
            *(_scenario(comparison, scenario.name) for scenario in comparison.plan.scenarios),
            *extra,
            *attribution.sections(comparison),
            _configurations(comparison),
            Section("What was run", bullets=_what_was_run(comparison, provenance)),
            Section("How to read the figures", _HOW_TO_READ),
            Section("Caveats", bullets=caveats(comparison)),
        ),
    )


def terminal_tables(comparison: Comparison, extra: Sequence[Section] = ()) -> tuple[Table, ...]:
    """Return the most important tables. The summary is last, so that it stays visible in a terminal."""
    scenarios = [scenario.name for scenario in comparison.plan.scenarios]
    makers = (tables.figures_table, tables.servers_table)
    return (
        *(_entitled(name, make(comparison, name)) for name in scenarios for make in makers),
        *(table for section in (*extra, *attribution.sections(comparison)) for table in section.tables),
        _entitled("summary", tables.short_table(comparison)),
    )


def _entitled(name: str, table: Table) -> Table:
    """Return the table with a title that needs no heading above it."""
    return dataclasses.replace(table, title=f"{name}: {table.title}")


def _scenario(comparison: Comparison, name: str) -> Section:
    """Return a scenario's section. The HTML page places the scenario's plots by this title."""
    makers = (tables.ratios_table, tables.figures_table, tables.servers_table)
    return Section(name, tables=tuple(make(comparison, name) for make in makers))


def _configurations(comparison: Comparison) -> Section:
    all_of_them, different = tables.configurations_table(comparison), tables.differences_table(comparison)
    if not different.rows:
        return Section("The configurations", "Their effective values are identical.", (all_of_them,))
    text = (
        "The second table shows the effective values that differ, as `lmi check` prints them. `-`: not an option of"
        " that engine, or not set."
    )
    return Section("The configurations", text, (all_of_them, different))


def _what_was_run(comparison: Comparison, provenance: Provenance) -> tuple[str, ...]:
    plan = comparison.plan
    reason = f" ({comparison.stopped})" if plan.stopping and comparison.end is End.AS_PLANNED else ""
    order = ", ".join(f"{_served(run)} ({_numbers(run.rounds)})" for run in comparison.server_runs)
    return (
        f"`{provenance.command}`, {provenance.when}",
        f"machine: {provenance.machine}",
        package_versions(provenance.versions),
        *(
            f"{one.name}: each round has {one.describe()}; the warm-up of each server, not counted, has"
            f" {one.warm_up().describe()}"
            for one in plan.scenarios
        ),
        "requests: greedy, EOS ignored, streamed; different in each round, the same for all configurations"
        f" (seed {plan.seed}); dialect {plan.dialect}",
        f"{comparison.num_rounds} round{'s' if comparison.num_rounds > 1 else ''}"
        f"{reason}, one server at a time, in the order: {order}",
    )


def _served(run: ServerRun) -> str:
    first, *others = run.configurations
    return f"{first}, then with changed settings {' and '.join(others)}" if others else first


def _numbers(rounds: Sequence[int]) -> str:
    return f"round{'s' if len(rounds) > 1 else ''} {' and '.join(map(str, rounds))}"


def json_values(
    comparison: Comparison, provenance: Provenance, extra: Sequence[Section] = ()
) -> dict[str, Any]:
    """Return the report's text, all measurements and the summary, for `container.measure.output.publish`."""
    base = comparison.configs[0].name
    return {
        **dataclasses.asdict(make_report(comparison, provenance, extra)),
        "setting": provenance,
        "plan": comparison.plan,
        "configurations": [
            {**dataclasses.asdict(config), "batch_limit": config.batch_limit} for config in comparison.configs
        ],
        "rounds": comparison.rounds,
        "server_runs": comparison.server_runs,
        "stopped": comparison.stopped,
        "summary": [
            _summary(comparison, config, base, scenario.name)
            for scenario in comparison.plan.scenarios
            for config in comparison.configs
        ],
        "attribution": attribution.json_values(comparison),
        "caveats": caveats(comparison),
    }


def _summary(comparison: Comparison, config: Configuration, base: str, scenario: str) -> dict[str, Any]:
    """Summarize one configuration in one scenario."""
    name = config.name
    compared = () if name == base else MEASURES
    results = comparison.of(name, scenario)
    ratios = {one.key: ratio(comparison, name, base, scenario, one) for one in MEASURES}
    return {
        "configuration": name,
        "scenario": scenario,
        "metrics": {one.key: over_rounds(comparison, name, scenario, one) for one in MEASURES},
        "ratios_to_first": ratios,
        "smallest_visible": {key: one.smallest_visible for key, one in ratios.items() if one and compared},
        "verdicts": {one.key: in_words(ratios[one.key], name, base, one) for one in compared},
        "batch_occupancy": occupancy(config, results),
        "counters": counters(results),
        "same_tokens_as_first": equality(comparison, name, base, scenario),
    }
