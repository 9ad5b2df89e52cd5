"""What a report says, in its order: texts, tables and plots, each left out where the results have nothing for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from container.measure.compare.summary import MEASURES, median, spread, times
from container.measure.numbers import NOTHING, gibibytes, number, percent
from container.measure.output import Table
from container.measure.report import charts
from container.measure.report.charts import LATENCY, THROUGHPUT
from container.measure.report.results import Results, figure, find, objects, sum_known, text
from container.measure.report.svg import Plot

_SUMMARY = (THROUGHPUT, "ttft_p50", LATENCY)
_MEASURES = {measure.key: measure for measure in MEASURES}


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """A verdict in words."""

    kind: str
    """`difference`, `same`, `open` or `failed`."""
    sentence: str


@dataclass(frozen=True, slots=True)
class VerdictGroup:
    """All verdicts on one subject."""

    subject: str
    """A scenario and a measure."""
    lines: tuple[VerdictLine, ...]


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A heading and what stands below it, in the order of the fields."""

    title: str
    texts: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    tables: tuple[Table, ...] = ()
    bullets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report."""

    title: str
    lead: str
    verdicts: tuple[VerdictGroup, ...]
    configurations: tuple[str, ...]
    sections: tuple[ReportSection, ...]


def make_report(document: Mapping[str, Any]) -> Report:
    """Arrange the results of `lmi compare` or `lmi bench`."""
    results = Results.of(document)
    names = results.names
    found = (
        _summary(results),
        *(_scenario(results, scenario) for scenario in results.scenarios),
        ReportSection("Over load", plots=tuple(charts.over_load(results))),
        *_own_sections(results),
        _configurations(results),
        ReportSection("Limits of these figures", bullets=_sentences(find(document, "caveats"))),
        _what_was_run(results),
    )
    simulated = "Simulated: " if find(document, "simulated") else ""
    kind = "Comparison of" if len(names) > 1 else "Results of"
    return Report(
        title=f"{simulated}{kind} {_listed(names)}",
        lead=". ".join(filter(None, (text(results.document, "setting", key) for key in ("when", "machine")))),
        verdicts=tuple(_verdicts(results)),
        configurations=names,
        sections=tuple(one for one in found if one.texts or one.plots or one.tables or one.bullets),
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def _sentences(found: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in found) if isinstance(found, list | tuple) else ()


def _verdicts(results: Results) -> Iterator[VerdictGroup]:
    failed, total = (sum_known(results.rounds(), "figures", key) for key in ("num_errors", "num_requests"))
    if failed > 0:
        sentence = f"{failed:.0f} of {total:.0f} requests failed; figures and verdicts count the others only."
        yield VerdictGroup("failed requests", (VerdictLine("failed", sentence),))
    for scenario in results.scenarios:
        for measure in (THROUGHPUT, LATENCY):
            lines = [_verdict(results, name, scenario, measure) for name in results.names[1:]]
            title = _MEASURES[measure].title
            if lines := [line for line in lines if line]:
                yield VerdictGroup(
                    f"{scenario}, {title}" if len(results.scenarios) > 1 else title, tuple(lines)
                )
    if "best_rate" in results.document:
        best = figure(results.document, "best_rate")
        found = f"{number(best)} requests/s." if math.isfinite(best) else "No rate is sustained."
        line = VerdictLine("same" if math.isfinite(best) else "failed", found)
        yield VerdictGroup("highest sustained rate", (line,))


def _verdict(results: Results, name: str, scenario: str, measure: str) -> VerdictLine | None:
    sentence = text(results.summary(name, scenario), "verdicts", measure)
    ratio = results.ratio(name, scenario, measure)
    kind = "same" if sentence.startswith("no difference") else "open"
    kind = "difference" if ratio and ratio.count > 1 and ratio.differs else kind
    return VerdictLine(kind, f"{sentence}.") if sentence else None


def _summary(results: Results) -> ReportSection:
    """A table for each scenario; one of all scenarios for a single configuration."""
    if len(results.names) == 1:
        (name,) = results.names
        rows = [
            (one, *_figures(results, name, one)) for one in results.scenarios if results.summary(name, one)
        ]
        header = ("load", *(_MEASURES[key].title_with_unit for key in _SUMMARY))
        return ReportSection("Summary", tables=(Table("", header, tuple(rows)),) if rows else ())
    base = "".join(results.names[:1])
    pairs = [(_MEASURES[key].title_with_unit, "times the first") for key in _SUMMARY]
    header = ("configuration", *(title for pair in pairs for title in pair))
    tables = []
    for scenario in results.scenarios:
        rows = [
            (name, *_figures(results, name, scenario, base))
            for name in results.names
            if results.summary(name, scenario)
        ]
        title = "Medians of the rounds; ratios with their 95 % intervals"
        title = f"{scenario}: {title}" if len(results.scenarios) > 1 else title
        tables += [Table(title, header, tuple(rows))] if rows else []
    return ReportSection("Summary", tables=tuple(tables))


def _figures(results: Results, name: str, scenario: str, base: str = "") -> Iterator[str]:
    """Cells of the summary, each with its ratio where there is a base."""
    for key in _SUMMARY:
        middle = results.median(name, scenario, key)
        yield number(middle.value) if middle else NOTHING
        if base:
            yield "1" if name == base else times(results.ratio(name, scenario, key))


def _scenario(results: Results, scenario: str) -> ReportSection:
    found = (charts.throughput, charts.attribution, charts.distributions, charts.slot_rows)
    return ReportSection(
        scenario if len(results.scenarios) > 1 else f"Load: {scenario}",
        plots=tuple(plot for plots in found for plot in plots(results, scenario)),
        tables=_servers(results, scenario),
    )


_COUNTERS = {
    "padding_tokens": "tokens computed as padding",
    "ended_row_tokens": "tokens computed for answers that had ended",
    "recomputed_tokens": "tokens computed again after a preemption",
    "preemptions": "preemptions",
    "prefix_hit_tokens": "prompt tokens found in the prefix cache",
}


def _servers(results: Results, scenario: str) -> tuple[Table, ...]:
    """What happened inside the servers, over all rounds."""
    columns = [_server(results, name, scenario) for name in results.names]
    titles = dict.fromkeys(title for column in columns for title in column)
    rows = tuple((title, *(column.get(title, NOTHING) for column in columns)) for title in titles)
    return (Table("Inside the servers", ("", *results.names), rows),) if rows else ()


def _server(results: Results, name: str, scenario: str) -> dict[str, str]:
    """Titles and cells of one configuration, as far as they are known."""
    rounds, summary = results.rounds(configuration=name, scenario=scenario), results.summary(name, scenario)
    sizes = [(figure(one, "batches", "mean"), figure(one, "batches", "count")) for one in rounds]
    known = [(mean, count) for mean, count in sizes if mean * count > 0]
    slots, most, waste = (
        median(figure(one, "kv", key) for one in rounds)
        for key in ("mean_allocated", "peak_allocated", "waste")
    )
    same = find(summary, "tokens_of_first")
    failed = _whole(sum_known(rounds, "figures", "num_errors"))
    cells = {
        "batch, mean": number(sum(mean * count for mean, count in known) / sum(count for _, count in known))
        if known
        else NOTHING,
        "batch, mean, of the largest allowed": percent(figure(summary, "batch_occupancy")),
        "KV slots allocated, mean": _whole(slots.value) if slots else NOTHING,
        "KV slots allocated, peak": _whole(most.value) if most else NOTHING,
        "allocated KV slots without a token": percent(waste.value) if waste else NOTHING,
        **{title: _whole(figure(summary, "counters", key)) for key, title in _COUNTERS.items()},
        "answers with the same tokens as the first": f"{find(same, 'num_identical')} of {find(same, 'num_requests')}"
        if same
        else NOTHING,
    }
    known_cells = {title: cell for title, cell in cells.items() if cell != NOTHING}
    return known_cells and {**known_cells, "failed requests": failed}


def _whole(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else NOTHING


def _own_sections(results: Results) -> Iterator[ReportSection]:
    """The sections that the results bring with them."""
    for one in objects(results.document, "sections"):
        tables = tuple(
            Table(
                text(table, "title"),
                tuple(map(str, table["header"])),
                tuple(tuple(map(str, row)) for row in table["rows"]),
                int(figure(table, "num_left")) if math.isfinite(figure(table, "num_left")) else 1,
            )
            for table in objects(one, "tables")
            if "header" in table and "rows" in table
        )
        yield ReportSection(text(one, "title"), (text(one, "text"),), tables=tables)


def _configurations(results: Results) -> ReportSection:
    configs = objects(results.document, "configurations")
    rows = []
    for one in configs:
        stays = [
            stay
            for stay in objects(results.document, "stays")
            if text(stay, "configuration") == text(one, "name")
        ]
        start = median(figure(stay, "start_up_seconds") for stay in stays)
        peak = median(figure(stay, "peak_memory_bytes") for stay in stays)
        source = text(one, "origin") or text(one, "url") or text(one, "path")
        cells = (text(one, "name"), source, text(one, "engine"), text(one, "model"))
        rows.append(
            (*cells, f"{spread(start)} s" if start else NOTHING, gibibytes(peak.high if peak else None))
        )
    header = ("configuration", "from", "engine", "model", "start-up", "peak memory")
    tables = [Table("", header, tuple(rows), num_left=4)] if rows else []
    values = {key: None for one in configs for key in find(one, "values") or {}}
    effective = {key: tuple(text(one, "values", key) or NOTHING for one in configs) for key in values}
    different = tuple((key, *cells) for key, cells in effective.items() if len(set(cells)) > 1)
    if different:
        columns = ("option", *(text(one, "name") for one in configs))
        tables.append(Table("Effective values that differ", columns, different, num_left=len(columns)))
    return ReportSection("The configurations", tables=tuple(tables))


def _what_was_run(results: Results) -> ReportSection:
    document = results.document
    versions = find(document, "setting", "versions") or {}
    order = [
        f"{text(one, 'configuration')} ({', '.join(map(str, find(one, 'rounds') or ()))})"
        for one in objects(document, "stays")
    ]
    facts = {
        "command": text(document, "setting", "command"),
        "date": text(document, "setting", "when"),
        "machine": text(document, "setting", "machine"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "load": "; ".join(filter(None, (text(document, "load"), *results.scenarios))),
        "seed": text(document, "plan", "seed") or text(document, "seed"),
        "order of the servers, with their rounds": ", ".join(order),
        "end": text(document, "stopped"),
    }
    return ReportSection(
        "What was run", bullets=tuple(f"{key}: {fact}" for key, fact in facts.items() if fact)
    )
