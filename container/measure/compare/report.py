"""The report of a comparison: Markdown for people, JSON for programs."""

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
from container.measure.compare.results import Comparison, StayResult
from container.measure.compare.summary import (
    MEASURES,
    counters,
    equality,
    occupancy,
    over_rounds,
    ratio,
)
from container.measure.compare.tables import Section
from container.measure.compare.verdict import headline, verdict
from container.measure.output import Table

_HOW_TO_READ = """\
Figures are medians over the rounds, with the smallest and the largest value in brackets. A ratio is the geometric mean
over the rounds: in each round both configurations had the same requests. Its 95 % interval, in brackets, is a paired
t-interval on logarithms, corrected (Bonferroni) for the number of ratios in this report: where configurations do not
differ at all, at most one report in twenty calls any measure different. A difference is reported when its interval
excludes 1. "This run could see" names the smallest difference that an interval of that width excludes. Times are
measured by the client, from the moment at which a request was due. A KV slot holds one token; slots are sampled twice a
second, and not reported for engines that leave the KV cache to transformers. Peak memory is the sum of the largest
resident set of each process; shared pages count in each."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a reader needs to repeat a comparison."""

    command: str
    when: str
    """Start time, UTC, to the minute."""
    machine: str
    versions: dict[str, str]


def make_provenance(command: str, machine: Machine) -> Provenance:
    """Record the present time, machine and package versions."""
    return Provenance(
        command=command,
        when=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        machine=describe(machine),
        versions=versions(),
    )


def findings(comparison: Comparison) -> tuple[str, ...]:
    """The verdicts and the division of the gain, in sentences."""
    return (*headline(comparison), *attribution.sentences(comparison))


def terminal_tables(comparison: Comparison, sections: Sequence[Section] = ()) -> tuple[Table, ...]:
    """The most important tables, the summary last: that is what a terminal shows."""
    return (
        *(
            table(comparison, scenario.name)
            for scenario in comparison.plan.scenarios
            for table in (tables.figures_table, tables.servers_table)
        ),
        *(table for section in sections for table in section.tables),
        tables.short_table(comparison),
    )


def markdown(comparison: Comparison, provenance: Provenance, sections: Sequence[Section] = ()) -> str:
    """The whole report; a reader needs no other text."""
    names = [config.name for config in comparison.configs]
    summary = tables.short_table(comparison)
    parts = [
        f"# Comparison of {', '.join(names[:-1])} and {names[-1]}",
        f"{len(names)} configurations, served one at a time under the same load:",
        _bullets(findings(comparison)),
        f"{summary.title}:",
        summary.markdown(),
        _HOW_TO_READ,
    ]
    for section in sections:
        parts += [f"## {section.title}", section.text, *_with_titles(section.tables)]
    parts += ["## What was run", _what_was_run(comparison, provenance)]
    parts += ["## The configurations", tables.configurations_table(comparison).markdown()]
    different = tables.differences_table(comparison)
    if different.rows:
        parts += [
            "Effective values that differ, as `lmi check` prints them. `-`: not an option of that engine, or unset.",
            different.markdown(),
        ]
    else:
        parts.append("Their effective values are the same.")
    for scenario in comparison.plan.scenarios:
        parts.append(f"## {scenario.name}")
        made = (tables.ratios_table, tables.figures_table, tables.servers_table)
        parts += _with_titles([table(comparison, scenario.name) for table in made])
    parts += ["## Limits of these figures", _bullets(caveats(comparison))]
    return "\n\n".join(parts) + "\n"


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _with_titles(found: Sequence[Table]) -> list[str]:
    if len(found) == 1:
        return [found[0].markdown()]
    return [text for table in found for text in (f"**{table.title}**", table.markdown())]


def _what_was_run(comparison: Comparison, provenance: Provenance) -> str:
    plan = comparison.plan
    packages = ", ".join(f"{name} {version}" for name, version in provenance.versions.items())
    warm_up = plan.scenarios[0].warm_up()
    order = ", ".join(f"{_served(stay)} ({_numbers(stay.rounds)})" for stay in comparison.stays)
    lines = [
        f"`{provenance.command}`, {provenance.when}",
        f"machine: {provenance.machine}",
        f"versions: {packages}",
        *(f"{one.name}: each round has {one.describe()}" for one in plan.scenarios),
        "requests: greedy, EOS ignored, streamed; different in each round, the same for all configurations"
        f" (seed {plan.seed}); dialect {plan.dialect}",
        f"{comparison.num_rounds} round{'s' if comparison.num_rounds > 1 else ''}"
        f"{f' ({comparison.stopped})' if plan.stopping else ''}, one server at a time, in the order: {order}",
        f"warm-up of each server, not counted: for each scenario {warm_up.describe()}",
    ]
    return _bullets(lines)


def _served(stay: StayResult) -> str:
    first, *others = stay.configurations or (stay.configuration,)
    return f"{first}, then by changed settings {' and '.join(others)}" if others else first


def _numbers(rounds: Sequence[int]) -> str:
    return f"round{'s' if len(rounds) > 1 else ''} {' and '.join(map(str, rounds))}"


def json_values(
    comparison: Comparison, provenance: Provenance, sections: Sequence[Section] = ()
) -> dict[str, Any]:
    """All measurements and the summary, for `container.measure.output.write_json`."""
    base = comparison.configs[0].name
    return {
        "setting": provenance,
        "plan": comparison.plan,
        "configurations": [
            {**dataclasses.asdict(config), "batch_limit": config.batch_limit} for config in comparison.configs
        ],
        "rounds": [dataclasses.asdict(result) for result in comparison.rounds],
        "stays": [dataclasses.asdict(stay) for stay in comparison.stays],
        "stopped": comparison.stopped,
        "summary": [
            _summary(comparison, config, base, scenario.name)
            for scenario in comparison.plan.scenarios
            for config in comparison.configs
        ],
        "attribution": attribution.json_values(comparison),
        "sections": [dataclasses.asdict(section) for section in sections],
        "caveats": caveats(comparison),
    }


def _summary(comparison: Comparison, config: Configuration, base: str, scenario: str) -> dict[str, Any]:
    """One configuration in one scenario."""
    name = config.name
    compared = () if name == base else MEASURES
    results = comparison.of(name, scenario)
    ratios = {one.key: ratio(comparison, name, base, scenario, one) for one in MEASURES}
    return {
        "configuration": name,
        "scenario": scenario,
        "figures": {one.key: over_rounds(comparison, name, scenario, one) for one in MEASURES},
        "ratios_to_first": ratios,
        "smallest_visible": {key: one.smallest_visible for key, one in ratios.items() if one and compared},
        "verdicts": {one.key: verdict(comparison, name, base, scenario, one) for one in compared},
        "batch_occupancy": occupancy(config, results),
        "counters": counters(results),
        "tokens_of_first": equality(comparison, name, base, scenario),
    }
