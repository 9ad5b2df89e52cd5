"""The tables of a comparison, as text cells, for the terminal and the Markdown file."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table as RichTable

from container.measure.compare.configurations import differences
from container.measure.compare.numbers import NOTHING, gibibytes, number, percent, spread, times
from container.measure.compare.results import Comparison, RoundResult
from container.measure.compare.summary import (
    LATENCY_P90,
    MEASURES,
    TOKENS_PER_SECOND,
    Equality,
    Measure,
    equality,
    median,
    over_rounds,
    ratio,
)
from container.measure.compare.verdict import verdict

_SCALES = {"/s": 1.0, "s": 1.0, "ms": 1000.0}


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a header, rows of as many cells."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_left: int = 1
    """So many first columns are text and stand left, the others right."""

    def markdown(self) -> str:
        """A pipe table; the title is the caller's."""
        ruler = ("---" if place < self.num_left else "---:" for place in range(len(self.header)))
        lines = [self.header, ruler, *self.rows]
        return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)

    def rich(self) -> RichTable:
        table = RichTable(title=self.title, title_justify="left")
        for place, name in enumerate(self.header):
            table.add_column(name, justify="left" if place < self.num_left else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def short_table(comparison: Comparison) -> Table:
    """Throughput and latency, one row for each configuration and scenario."""
    base = comparison.arms[0].name
    rows = []
    for scenario in comparison.plan.scenarios:
        for arm in comparison.arms:
            cells = [scenario.name, arm.name]
            for measure in (TOKENS_PER_SECOND, LATENCY_P90):
                seen = over_rounds(comparison, arm.name, scenario.name, measure)
                cells.append(number(seen.value) if seen else NOTHING)
                other = ratio(comparison, arm.name, base, scenario.name, measure)
                cells.append("1" if arm.name == base else times(other))
            same = None if arm.name == base else equality(comparison, arm.name, base, scenario.name)
            rows.append((*cells, _share_identical(same)))
    header = (
        *("scenario", "configuration", TOKENS_PER_SECOND.title, f"times {base}"),
        *(_with_unit(LATENCY_P90), f"times {base}", "answers with the same tokens"),
    )
    rounds = comparison.plan.num_rounds
    title = (
        "summary: one round"
        if rounds == 1
        else f"summary: medians of {rounds} rounds, ratios with 95 % intervals"
    )
    return Table(title, header, tuple(rows), num_left=2)


def figures_table(comparison: Comparison, scenario: str) -> Table:
    """Each measure of each configuration: median over the rounds, smallest and largest."""
    names = [arm.name for arm in comparison.arms]
    rows = [
        (
            _with_unit(measure),
            *(
                spread(over_rounds(comparison, name, scenario, measure), _SCALES[measure.unit])
                for name in names
            ),
        )
        for measure in MEASURES
    ]
    return Table(f"{scenario}: figures, {_rounds(comparison)}", ("", *names), tuple(rows))


def ratios_table(comparison: Comparison, scenario: str) -> Table:
    """Each measure of each further configuration beside the first one."""
    base, *others = [arm.name for arm in comparison.arms]
    rows = [
        (
            name,
            measure.title,
            verdict(comparison, name, base, scenario, measure),
            times(ratio(comparison, name, base, scenario, measure)),
        )
        for name in others
        for measure in MEASURES
    ]
    header = ("configuration", "measure", "verdict", f"times {base} (95 % interval)")
    return Table(f"{scenario}: beside {base}", header, tuple(rows), num_left=3)


def servers_table(comparison: Comparison, scenario: str) -> Table:
    """Batches, KV cache and tokens of the servers."""
    base = comparison.arms[0].name
    columns = []
    for arm in comparison.arms:
        results = comparison.of(arm.name, scenario)
        same = None if arm.name == base else equality(comparison, arm.name, base, scenario)
        columns.append(
            (
                _mean_batch(results, arm.batch_unit),
                _kv(results, peak=False),
                _kv(results, peak=True),
                percent(_kv_waste(results)),
                _share_identical(same),
                _where(same),
                str(sum(result.figures.num_errors for result in results)),
            )
        )
    titles = (
        "batch, mean",
        "KV slots allocated, mean",
        "KV slots allocated, peak",
        "waste: allocated slots without a token",
        f"answers with the tokens of {base}",
        "first difference at output token",
        "failed requests",
    )
    rows = tuple((title, *cells) for title, *cells in zip(titles, *columns, strict=True))
    names = [arm.name for arm in comparison.arms]
    return Table(f"{scenario}: inside the servers, {_rounds(comparison)}", ("", *names), rows)


def arms_table(comparison: Comparison) -> Table:
    """Each configuration, and the time and memory that its server took."""
    rows = []
    for arm in comparison.arms:
        lives = [stay for stay in comparison.stays if stay.configuration == arm.name]
        peaks = [stay.peak_memory_bytes for stay in lives if stay.peak_memory_bytes is not None]
        start = median(stay.start_up_seconds for stay in lives)
        rows.append(
            (
                arm.name,
                arm.configuration,
                arm.engine,
                arm.model,
                f"{spread(start)} s",
                gibibytes(max(peaks, default=None)),
            )
        )
    header = ("configuration", "from", "engine", "model", "start-up", "peak memory")
    return Table("the configurations", header, tuple(rows), num_left=4)


def differences_table(comparison: Comparison) -> Table:
    """The effective values in which the configurations differ."""
    rows = tuple(
        (row.key, *(value or NOTHING for value in row.values)) for row in differences(comparison.arms)
    )
    return Table("effective values that differ", ("key", *(arm.name for arm in comparison.arms)), rows)


def _rounds(comparison: Comparison) -> str:
    count = comparison.plan.num_rounds
    return "one round" if count == 1 else f"medians of {count} rounds (smallest to largest)"


def _with_unit(measure: Measure) -> str:
    return measure.title if measure.unit == "/s" else f"{measure.title}, {measure.unit}"


def _mean_batch(results: tuple[RoundResult, ...], unit: str) -> str:
    """Over all batches of all rounds."""
    batches = [result.batches for result in results if result.batches]
    if not batches:
        return NOTHING
    total = sum(batch.mean * batch.count for batch in batches)
    return f"{number(total / sum(batch.count for batch in batches))} {unit}"


def _kv(results: tuple[RoundResult, ...], peak: bool) -> str:
    """Median over the rounds, and its share of the whole cache."""
    uses = [result.kv for result in results if result.kv]
    slots = median(use.peak_allocated if peak else use.mean_allocated for use in uses)
    share = median(use.peak_share if peak else use.mean_share for use in uses)
    if slots is None or share is None:
        return NOTHING
    return f"{slots.value:.0f} ({percent(share.value)} of all)"


def _kv_waste(results: tuple[RoundResult, ...]) -> float | None:
    waste = median(result.kv.waste for result in results if result.kv and result.kv.waste is not None)
    return waste.value if waste else None


def _share_identical(same: Equality | None) -> str:
    return NOTHING if same is None else f"{same.num_identical} of {same.num_requests}"


def _where(same: Equality | None) -> str:
    if same is None or same.earliest is None:
        return NOTHING
    return f"{same.earliest.position + 1} (round {same.earliest.round}, request {same.earliest.request + 1})"
