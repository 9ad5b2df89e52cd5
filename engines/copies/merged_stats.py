"""The counters of several copies, merged into those of one engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engines.core import EngineStats, HistogramData

_RATIOS = frozenset({"lmi_kv_use", "lmi_kv_waste"})
"""Gauges that are averaged; all others are summed."""


def merge(replies: Sequence[EngineStats | None], num_serving: int) -> EngineStats | None:
    """Add up the counters of the copies that replied, and keep each copy's own; None if no copy replied."""
    by_copy = {str(number): stats for number, stats in enumerate(replies, 1) if stats is not None}
    if not by_copy:
        return None
    each = list(by_copy.values())
    gauges = _sums([stats.gauges for stats in each])
    gauges |= {name: gauges[name] / len(each) for name in _RATIOS & gauges.keys()}
    gauges |= {"lmi_copies": float(len(replies)), "lmi_copies_serving": float(num_serving)}
    info = replace(
        each[0].info,
        kv_capacity_tokens=sum(stats.info.kv_capacity_tokens for stats in each),
        kv_capacity_bytes=sum(stats.info.kv_capacity_bytes for stats in each),
    )
    counters = _sums([stats.counters for stats in each])
    return EngineStats(info, gauges, counters, _histograms(each), by_copy)


def _sums(each: Sequence[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for values in each:
        for name, value in values.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _histograms(each: Sequence[EngineStats]) -> tuple[HistogramData, ...]:
    total: dict[tuple[str, tuple[tuple[str, str], ...]], HistogramData] = {}
    for one in (histogram for stats in each for histogram in stats.histograms):
        key = one.name, tuple(sorted(one.labels.items()))
        before = total.get(key, replace(one, counts=(0,) * len(one.counts), sum=0.0))
        counts = tuple(map(sum, zip(before.counts, one.counts, strict=True)))
        total[key] = replace(one, counts=counts, sum=before.sum + one.sum)
    return tuple(total.values())
