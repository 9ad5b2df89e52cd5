"""The report: Markdown for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from container.measure.compare import tables
from container.measure.compare.caveats import caveats
from container.measure.compare.results import Comparison
from container.measure.compare.summary import (
    MEASURES,
    equality,
    over_rounds,
    ratio,
)
from container.measure.compare.tables import Table
from container.measure.compare.verdict import headline, verdict

_HOW_TO_READ = """\
Figures are medians over the rounds, with the smallest and the largest in brackets. A ratio is the geometric mean over
the rounds: in each round both configurations had the same requests. Its 95 % interval, in brackets, is a paired
t-interval on logarithms, corrected (Bonferroni) for the number of ratios in this report: where two configurations do
not differ at all, at most one report in twenty calls any measure different. A difference is reported when its interval
excludes 1. Times are measured by the client, from the moment at which a request was due. A KV slot holds one token;
slots are sampled twice a second, and not reported for engines that leave the KV cache to transformers. Peak memory is
the sum of each process's largest resident set; shared pages count in each."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Command, time, machine and versions of a comparison."""

    command: str
    when: str
    """The start: UTC, to the minute."""
    machine: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Section:
    """An additional part of the report."""

    title: str
    text: str
    tables: tuple[Table, ...] = ()
    """Their titles stand above them where there is more than one."""


def terminal_tables(comparison: Comparison, sections: Sequence[Section] = ()) -> tuple[Table, ...]:
    """The most important tables, the summary last: that is what a screen shows."""
    return (
        *(
            table(comparison, scenario.name)
            for scenario in comparison.plan.scenarios
            for table in (tables.figures_table, tables.servers_table)
        ),
        *(table for section in sections for table in section.tables),
        tables.short_table(comparison),
    )


def markdown(comparison: Comparison, setting: Setting, sections: Sequence[Section] = ()) -> str:
    """The whole report, which needs no other text to be understood."""
    names = [arm.name for arm in comparison.arms]
    parts = [
        f"# Comparison of {', '.join(names[:-1])} and {names[-1]}",
        f"{len(names)} configurations, served one at a time under the same load:",
        _bullets(headline(comparison)),
        f"{tables.short_table(comparison).title}:",
        tables.short_table(comparison).markdown(),
        _HOW_TO_READ,
    ]
    for section in sections:
        parts += [f"## {section.title}", section.text, *_with_titles(section.tables)]
    parts += ["## What was run", _what_was_run(comparison, setting)]
    parts += ["## The configurations", tables.arms_table(comparison).markdown()]
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


def _what_was_run(comparison: Comparison, setting: Setting) -> str:
    plan = comparison.plan
    versions = ", ".join(f"{name} {version}" for name, version in setting.versions.items())
    warm_up = plan.scenarios[0].warm_up()
    order = ", ".join(f"{stay.configuration} ({_numbers(stay.rounds)})" for stay in comparison.stays)
    lines = [
        f"`{setting.command}`, {setting.when}",
        f"machine: {setting.machine}",
        f"versions: {versions}",
        *(f"{one.name}: each round has {one.workload(plan.seed).describe()}" for one in plan.scenarios),
        "requests: greedy, EOS ignored, streamed; each round has requests of its own, the same for all configurations"
        f" (seed {plan.seed}); dialect {plan.dialect}",
        f"{plan.num_rounds} round{'s' if plan.num_rounds > 1 else ''}, one server at a time, in the order: {order}",
        f"warm-up of each server, not counted: for each scenario {warm_up.workload(plan.seed).describe()}",
    ]
    return _bullets(lines)


def _numbers(rounds: Sequence[int]) -> str:
    return f"round{'s' if len(rounds) > 1 else ''} {' and '.join(map(str, rounds))}"


def as_json(comparison: Comparison, setting: Setting, sections: Sequence[Section] = ()) -> str:
    """All measurements, and the summary."""
    data = {
        "setting": dataclasses.asdict(setting),
        "plan": dataclasses.asdict(comparison.plan),
        "configurations": [{**dataclasses.asdict(arm), "path": str(arm.path)} for arm in comparison.arms],
        "rounds": [dataclasses.asdict(result) for result in comparison.rounds],
        "stays": [dataclasses.asdict(stay) for stay in comparison.stays],
        "summary": [
            _summary(comparison, arm.name, scenario.name)
            for scenario in comparison.plan.scenarios
            for arm in comparison.arms
        ],
        "sections": [dataclasses.asdict(section) for section in sections],
        "caveats": caveats(comparison),
    }
    return json.dumps(_plain(data), indent=1) + "\n"


def _summary(comparison: Comparison, arm: str, scenario: str) -> dict[str, Any]:
    """One configuration in one scenario."""
    base = comparison.arms[0].name
    return {
        "configuration": arm,
        "scenario": scenario,
        "figures": {measure.key: over_rounds(comparison, arm, scenario, measure) for measure in MEASURES},
        "ratios_to_first": {
            measure.key: ratio(comparison, arm, base, scenario, measure) for measure in MEASURES
        },
        "verdicts": {measure.key: verdict(comparison, arm, base, scenario, measure) for measure in MEASURES}
        if arm != base
        else {},
        "tokens_of_first": equality(comparison, arm, base, scenario),
    }


def _plain(value: Any) -> Any:
    """JSON values: dataclasses become objects, paths text, NaN and infinity null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
