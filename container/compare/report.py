"""The report: Markdown for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from container.compare import tables
from container.compare.caveats import caveats
from container.compare.results import Comparison
from container.compare.summary import (
    MEASURES,
    equality,
    over_rounds,
    ratio,
)
from container.compare.tables import Table

_HOW_TO_READ = """\
Each figure is the median over the rounds, with the smallest and the largest in brackets. A ratio is computed in each
round, where both arms had the same requests, and then summed up in the same way. `?` behind a ratio: not established,
for over the rounds it spreads wider than its distance from 1, or there was one round. Times are the client's, from the
moment at which a request was to be sent. KV slots are places of one token each, looked at twice a second; an engine
that leaves the KV cache to transformers shows none. Peak memory is the sum of each process's largest resident set,
with pages that processes share counted for each."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and with what a comparison was run."""

    command: str
    when: str
    """When it began: UTC, to the minute."""
    machine: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report that only some comparisons have."""

    title: str
    text: str
    tables: tuple[Table, ...] = ()
    """Their titles stand above them where there is more than one."""


def terminal_tables(comparison: Comparison, sections: Sequence[Section] = ()) -> tuple[Table, ...]:
    """The tables for a screen, where the last ones are seen: without those that only a report needs."""
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
    """The whole report; who has only this text understands it."""
    names = [arm.name for arm in comparison.arms]
    parts = [
        f"# Comparison of {', '.join(names[:-1])} and {names[-1]}",
        f"{len(names)} configurations served one after the other under the same load;"
        f" {tables.short_table(comparison).title}:",
        tables.short_table(comparison).markdown(),
        _HOW_TO_READ,
    ]
    for section in sections:
        parts += [f"## {section.title}", section.text, *_with_titles(section.tables)]
    parts += ["## What was run", _what_was_run(comparison, setting)]
    parts += ["## The arms", tables.arms_table(comparison).markdown()]
    different = tables.differences_table(comparison)
    if different.rows:
        parts += [
            "Effective values that differ, as `lmi check` prints them; all others are the same. `-`: not a key of that"
            " engine, or left open.",
            different.markdown(),
        ]
    else:
        parts.append("Their effective values do not differ at all.")
    for scenario in comparison.plan.scenarios:
        parts.append(f"## {scenario.name}")
        made = (tables.figures_table, tables.ratios_table, tables.servers_table)
        parts += _with_titles([table(comparison, scenario.name) for table in made])
    parts += ["## To be read with care", _bullets(caveats(comparison))]
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
    order = ", ".join(f"{stay.arm} ({_numbers(stay.rounds)})" for stay in comparison.stays)
    lines = [
        f"`{setting.command}`, {setting.when}",
        f"machine: {setting.machine}",
        f"versions: {versions}",
        *(f"{scenario.name}: {scenario.describe()}, a round" for scenario in plan.scenarios),
        "requests: greedy, EOS ignored, streamed; prompts of exactly that many tokens, the same for every arm in a"
        f" round, others in each round (seed {plan.seed}); dialect {plan.dialect}",
        f"{plan.num_rounds} round{'s' if plan.num_rounds > 1 else ''}, one server at a time, in the order: {order}",
        f"before its first round each server answered, for each scenario, {warm_up.num_requests} requests with prompts"
        f" of the same length and {warm_up.output_tokens} tokens out, which do not count",
    ]
    return _bullets(lines)


def _numbers(rounds: Sequence[int]) -> str:
    return f"round{'s' if len(rounds) > 1 else ''} {' and '.join(map(str, rounds))}"


def as_json(comparison: Comparison, setting: Setting, sections: Sequence[Section] = ()) -> str:
    """Everything that was measured, and what follows from it."""
    data = {
        "setting": dataclasses.asdict(setting),
        "plan": dataclasses.asdict(comparison.plan),
        "arms": [{**dataclasses.asdict(arm), "path": str(arm.path)} for arm in comparison.arms],
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
    """One arm in one scenario."""
    base = comparison.arms[0].name
    return {
        "arm": arm,
        "scenario": scenario,
        "figures": {measure.key: over_rounds(comparison, arm, scenario, measure) for measure in MEASURES},
        "ratios_to_first_arm": {
            measure.key: ratio(comparison, arm, base, scenario, measure) for measure in MEASURES
        },
        "tokens_of_first_arm": equality(comparison, arm, base, scenario),
    }


def _plain(value: Any) -> Any:
    """As JSON has it: dataclasses as objects, paths as text, numbers that are none as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)
