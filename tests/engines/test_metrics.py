"""Counters and histograms of the engine, and their snapshots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.core import EngineInfo, EngineStats
from engines.metrics import EngineMetrics, Histogram

_INFO = EngineInfo("m", "MPI", 1, "cpu", "fp32", 1, 1, 1, 1, 1, True)
_BOUNDS = (1.0, 2.0, 5.0)


@given(st.lists(st.floats(0, 10), max_size=50))
def test_each_observation_is_in_exactly_one_bucket(values: list[float]) -> None:
    histogram = Histogram("h", _BOUNDS)
    for value in values:
        histogram.observe(value)
    data = histogram.snapshot()
    assert sum(data.counts) == len(values)
    assert data.sum == pytest.approx(sum(values))
    for i, bound in enumerate(_BOUNDS):
        assert sum(data.counts[: i + 1]) == sum(value <= bound for value in values)


def test_an_upper_bound_is_inclusive() -> None:
    histogram = Histogram("h", _BOUNDS, {"part": "model"})
    histogram.observe(2.0)
    data = histogram.snapshot()
    assert (data.counts, data.sum, data.labels) == ((0, 1, 0, 0), 2.0, {"part": "model"})


def _histogram_sums(stats: EngineStats) -> dict[tuple[str, str], tuple[int, float]]:
    return {(h.name, h.labels.get("part", "")): (sum(h.counts), h.sum) for h in stats.histograms}


def test_a_step_counts_its_sequences_and_its_seconds_per_part() -> None:
    metrics = EngineMetrics()
    metrics.observe_step(3, 3, {"model": 0.5, "sample": 0.25})
    metrics.observe_step(5, 5, {"model": 0.5})
    stats = metrics.snapshot(_INFO, {"lmi_requests_running": 5.0})
    sums = _histogram_sums(stats)
    assert stats.counters["lmi_steps_total"] == 2
    assert sums["lmi_batch_size", ""] == (2, 8.0)
    assert sums["lmi_step_seconds", "model"] == (2, 1.0)
    assert sums["lmi_step_seconds", "sample"] == (1, 0.25)
    assert stats.gauges == {"lmi_requests_running": 5.0}
    assert stats.info is _INFO
    times = {"lmi_time_to_first_token_seconds", "lmi_time_per_output_token_seconds", "lmi_queue_seconds"}
    assert {name for name, _ in sums} >= times


def test_a_snapshot_does_not_change_later() -> None:
    metrics = EngineMetrics()
    before = metrics.snapshot(_INFO, {})
    metrics.tokens_generated += 4
    metrics.observe_step(1, 1, {"model": 1.0})
    metrics.queue_time.observe(1.0)
    assert before.counters["lmi_tokens_generated_total"] == 0
    assert all(sum(histogram.counts) == 0 for histogram in before.histograms)
    assert metrics.snapshot(_INFO, {}).counters["lmi_tokens_generated_total"] == 4
