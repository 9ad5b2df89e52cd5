"""The tables of a comparison, for the terminal and the report."""

from __future__ import annotations

from container.measure.compare.configurations import Configuration, differing_values
from container.measure.compare.results import Comparison, RoundResult
from container.measure.compare.summary import (
    LATENCY_P90,
    MEASURES,
    TOKENS_PER_SECOND,
    Equality,
    counters,
    equality,
    mean_batch,
    median,
    occupancy,
    over_rounds,
    ratio,
    spread,
    times,
)
from container.measure.compare.verdict import in_words
from container.measure.numbers import NO_VALUE, format_number, gibibytes, percent
from container.measure.output import Table

_SCALES = {"/s": 1.0, "s": 1.0, "ms": 1000.0}
_BATCH_UNITS = {"MPI": "sequences a step", "Python": "requests a batch"}


def short_table(comparison: Comparison) -> Table:
    """Return throughput and latency, with a row for each configuration in each scenario."""
    base = comparison.configs[0].name
    rows = []
    for scenario in comparison.plan.scenarios:
        for config in comparison.configs:
            cells = [config.name, scenario.name]
            for measure in (TOKENS_PER_SECOND, LATENCY_P90):
                found = over_rounds(comparison, config.name, scenario.name, measure)
                cells.append(format_number(found.value) if found else NO_VALUE)
                other = ratio(comparison, config.name, base, scenario.name, measure)
                cells.append("1" if config.name == base else times(other))
            same = equality(comparison, config.name, base, scenario.name)
            rows.append((*cells, _share_identical(same)))
    header = (
        *("configuration", "scenario", TOKENS_PER_SECOND.title, f"times {base}"),
        *(LATENCY_P90.title_with_unit, f"times {base}", "responses with the same tokens"),
    )
    title = _rounds(comparison, "medians of {} rounds, ratios with 95 % intervals")
    return Table(title, header, tuple(rows), num_left=2)


def figures_table(comparison: Comparison, scenario: str) -> Table:
    """Return each measure of each configuration: the median, smallest and largest value over the rounds."""
    names = [config.name for config in comparison.configs]
    rows = [
        (
            measure.title_with_unit,
            *(
                spread(over_rounds(comparison, name, scenario, measure), _SCALES[measure.unit])
                for name in names
            ),
        )
        for measure in MEASURES
    ]
    title = f"figures, {_rounds(comparison, 'medians of {} rounds (smallest to largest)')}"
    return Table(title, ("", *names), tuple(rows))


def ratios_table(comparison: Comparison, scenario: str) -> Table:
    """Compare each measure of each further configuration with the first configuration."""
    base, *others = [config.name for config in comparison.configs]
    rows = [
        (
            name,
            measure.title,
            in_words(seen := ratio(comparison, name, base, scenario, measure), name, base, measure),
            times(seen),
        )
        for name in others
        for measure in MEASURES
    ]
    header = ("configuration", "measure", "verdict", f"times {base} (95 % interval)")
    return Table(f"compared with {base}", header, tuple(rows), num_left=3)


def servers_table(comparison: Comparison, scenario: str) -> Table:
    """Return batch sizes, KV cache use, counters and tokens of the servers, without rows that have no values."""
    columns = [_server(comparison, config, scenario) for config in comparison.configs]
    rows = [(title, *(column[title] for column in columns)) for title in columns[0]]
    known = tuple(row for row in rows if set(row[1:]) != {NO_VALUE})
    names = [config.name for config in comparison.configs]
    title = f"inside the servers, {_rounds(comparison, '{} rounds together (KV slots and waste: medians)')}"
    return Table(title, ("", *names), known)


def _server(comparison: Comparison, config: Configuration, scenario: str) -> dict[str, str]:
    """Return the cells of a configuration by row title."""
    base = comparison.configs[0].name
    results = comparison.of(config.name, scenario)
    same = equality(comparison, config.name, base, scenario)
    counted = counters(results)
    waste = median(result.kv.waste for result in results if result.kv and result.kv.waste is not None)
    return {
        "batch, mean": _batch(results, config.engine),
        "batch occupancy: mean batch / largest batch": percent(occupancy(config, results)),
        "KV slots allocated, mean": _kv(results, peak=False),
        "KV slots allocated, peak": _kv(results, peak=True),
        "waste: allocated slots without a token": percent(waste.value if waste else None),
        "wasted tokens: padding, finished rows, recomputed": percent(counted.wasted_share),
        "padding tokens": _count(counted.padding_tokens),
        "tokens of finished rows": _count(counted.ended_row_tokens),
        "tokens recomputed after preemptions": _count(counted.recomputed_tokens),
        "preemptions": _count(counted.preemptions),
        "prompt tokens found in the prefix cache": _count(
            counted.prefix_hit_tokens, counted.prefix_hit_share
        ),
        f"responses with the same tokens as {base}": _share_identical(same),
        "first difference at output token": _where(same),
        "failed requests": str(sum(result.metrics.num_errors for result in results)),
    }


def _count(count: int | None, share: float | None = None) -> str:
    if count is None:
        return NO_VALUE
    return str(count) if share is None else f"{count} ({percent(share)})"


def configurations_table(comparison: Comparison) -> Table:
    """Return each configuration with the start-up time and peak memory of its server."""
    rows = []
    for config in comparison.configs:
        runs = [run for run in comparison.server_runs if config.name in run.configurations]
        peaks = [run.peak_memory_bytes for run in runs if run.peak_memory_bytes is not None]
        start = median(run.start_up_seconds for run in runs if run.start_up_seconds is not None)
        rows.append(
            (
                *(config.name, _origin(config), config.engine or NO_VALUE, config.model or NO_VALUE),
                *(f"{spread(start)} s" if start else NO_VALUE, gibibytes(max(peaks, default=None))),
            )
        )
    header = ("configuration", "from", "engine", "model", "start-up", "peak memory")
    return Table("", header, tuple(rows), num_left=4)


def _origin(config: Configuration) -> str:
    return f"{config.origin}, {config.url}" if config.url else config.origin or str(config.path)


def differences_table(comparison: Comparison) -> Table:
    """Return the effective values that differ between the configurations."""
    rows = tuple(
        (key, *(value or NO_VALUE for value in values))
        for key, values in differing_values(comparison.configs).items()
    )
    header = ("key", *(config.name for config in comparison.configs))
    return Table("effective values that differ", header, rows)


def _rounds(comparison: Comparison, several: str) -> str:
    """Return a title. several: the title for more than one round, with `{}` for their number."""
    return "one round" if comparison.num_rounds == 1 else several.format(comparison.num_rounds)


def _batch(results: tuple[RoundResult, ...], engine: str) -> str:
    mean = mean_batch(results)
    return NO_VALUE if mean is None else f"{format_number(mean)} {_BATCH_UNITS.get(engine, '')}"


def _kv(results: tuple[RoundResult, ...], peak: bool) -> str:
    """Format the median of the allocated slots over the rounds, and its share of the whole cache."""
    uses = [result.kv for result in results if result.kv]
    slots = median(use.peak_allocated if peak else use.mean_allocated for use in uses)
    share = median(use.peak_share if peak else use.mean_share for use in uses)
    if slots is None or share is None:
        return NO_VALUE
    return f"{slots.value:.0f} ({percent(share.value)} of all)"


def _share_identical(same: Equality | None) -> str:
    return NO_VALUE if same is None else f"{same.num_identical} of {same.num_requests}"


def _where(same: Equality | None) -> str:
    if same is None or same.earliest is None:
        return NO_VALUE
    return f"{same.earliest.position + 1} (round {same.earliest.round}, request {same.earliest.request + 1})"
