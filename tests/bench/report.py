"""Tables of a benchmark, ratios first."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from container.measure.compare.summary import median, spread
from container.measure.numbers import NO_VALUE, format_number, gibibytes, percent
from container.measure.output import Table
from tests.bench.results import Results, Run


def tables(results: Results) -> tuple[Table, ...]:
    """Return the tables, the most important first."""
    return (
        _ratios(results),
        _throughput(results),
        *(_latencies(results, workload) for workload in results.workloads),
        _resources(results),
        _shares(results),
        _settings(results),
    )


def notes(results: Results) -> tuple[str, ...]:
    """Return notes on the tables, the most important first."""
    found = list(results.warnings)
    found += [f"{name} could not be measured: {reason}" for name, reason in results.unavailable.items()]
    for run in results.runs:
        found += [
            f"{run.contender}, {run.workload}, round {run.round}: {error.count} of {run.figures.num_requests}"
            f" requests failed: {error.text}"
            for error in run.figures.errors
        ]
    limited = {
        run.contender: run.figures.client_limited for run in results.runs if run.figures.client_limited
    }
    found += [f"{name}: {sentence}" for name, sentence in limited.items()]
    if results.limits is not None:
        limits = results.limits
        int8 = f", {limits.int8_gops:.0f} GOP/s int8" if limits.int8_gops else ""
        found.append(
            f"this machine's limits on {limits.threads} threads: {limits.fp32_gflops:.0f} GFLOP/s fp32{int8},"
            f" {limits.read_gbs:.1f} GB/s read"
        )
    return tuple(found)


def _rounds(results: Results) -> str:
    return "one round" if results.num_rounds == 1 else f"median (range) of {results.num_rounds} rounds"


def _ratios(results: Results) -> Table:
    base, *others = results.contenders
    rows = [
        (f"over {name}", *(_ratio(results, base, name, workload) for workload in results.workloads))
        for name in others
    ]
    return Table(
        f"tokens/s of {base} relative to the others: {_rounds(results)}",
        ("", *results.workloads),
        tuple(rows),
    )


def _ratio(results: Results, base: str, name: str, workload: str) -> str:
    of_other = {run.round: run.figures.output_tokens_per_second for run in results.of(name, workload)}
    return spread(
        median(
            run.figures.output_tokens_per_second / of_other[run.round]
            for run in results.of(base, workload)
            if of_other.get(run.round)
        )
    )


def _throughput(results: Results) -> Table:
    return Table(
        f"output tokens/s: {_rounds(results)}",
        ("", *results.workloads),
        tuple(
            (name, *(_over(results, name, workload, _tokens_per_second) for workload in results.workloads))
            for name in results.contenders
        ),
    )


def _tokens_per_second(run: Run) -> float:
    return run.figures.output_tokens_per_second


_TIMES: tuple[tuple[str, float, Callable[[Run], float]], ...] = (
    ("TTFT p50, s", 1.0, lambda run: run.figures.ttft.p50),
    ("TTFT p90, s", 1.0, lambda run: run.figures.ttft.p90),
    ("TPOT p50, ms", 1000.0, lambda run: run.figures.tpot.p50),
    ("TPOT p90, ms", 1000.0, lambda run: run.figures.tpot.p90),
    ("latency p50, s", 1.0, lambda run: run.figures.latency.p50),
    ("latency p90, s", 1.0, lambda run: run.figures.latency.p90),
)


def _latencies(results: Results, workload: str) -> Table:
    return Table(
        f"{workload} ({results.workloads[workload]}): {_rounds(results)}",
        ("", *(title for title, _, _ in _TIMES)),
        tuple(
            (name, *(_over(results, name, workload, of, scale) for _, scale, of in _TIMES))
            for name in results.contenders
        ),
    )


def _over(results: Results, name: str, workload: str, of: Callable[[Run], float], scale: float = 1.0) -> str:
    return spread(median(of(run) for run in results.of(name, workload)), scale)


def _resources(results: Results) -> Table:
    rows = []
    for name in results.contenders:
        lives = [life for life in results.lives if life.contender == name]
        own_runs = [run for run in results.runs if run.contender == name]
        compared = sum(run.answers_compared for run in own_runs)
        equal = sum(run.answers_equal for run in own_runs)
        rows.append(
            (
                name,
                spread(median(life.start_up_seconds for life in lives)),
                gibibytes(max((life.peak_pss_bytes for life in lives), default=None)),
                f"{equal} of {compared}" if compared else NO_VALUE,
            )
        )
    header = (
        "",
        "start, s",
        "peak PSS",
        f"responses with the same tokens as {next(iter(results.contenders))}",
    )
    return Table("start-up time and memory of all processes", header, tuple(rows))


def _shares(results: Results) -> Table:
    def cells(name: str) -> Iterable[str]:
        for workload in results.workloads:
            runs = results.of(name, workload)
            arithmetic = median(run.arithmetic_share for run in runs)
            read = median(run.read_share for run in runs)
            yield percent(arithmetic.value if arithmetic else None) + (
                f", read {percent(read.value)}" if read else ""
            )

    return Table(
        "share of the peak of fp32 (int8) arithmetic; for one stream also of the read bandwidth, by weights only",
        ("", *results.workloads),
        tuple((name, *cells(name)) for name in results.contenders),
    )


def _settings(results: Results) -> Table:
    return Table(
        "settings",
        ("", "weights", "bytes per weight", "KV cache", "interface", "versions", "notes"),
        tuple(
            (
                *(name, facts.weights, format_number(facts.weight_bytes), facts.kv_cache, facts.interface),
                ", ".join(f"{package} {version}" for package, version in facts.versions.items()),
                facts.notes,
            )
            for name, facts in results.contenders.items()
        ),
        num_left=7,
    )
