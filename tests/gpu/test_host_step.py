"""Check the measurement of the host's work in a step: the whole load is served, and time counts in one phase only."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.gpu import host_step
from tests.gpu.host_step import TINY, Phases, measure, medians

_PHASES = {
    "schedule",
    "run",
    "prepare",
    "compute",
    "take",
    "finish",
    "count",
    "begin",
    "send",
    "wire",
    "receive",
}


def test_the_whole_load_is_served(tmp_path: Path) -> None:
    steps = measure(TINY, tmp_path)
    # At the end the last request may run alone. All other steps have more than half of the sequences, and count.
    assert len(steps) >= TINY.outputs[0]
    assert set(medians(steps)) >= {*_PHASES, "all", "all, mean"}
    assert all(value >= 0 for step in steps for value in step.values())


class _Work:
    def __init__(self, phases: Phases) -> None:
        phases.watch(self, "outer", "outer")
        phases.watch(self, "inner", "inner")

    def outer(self) -> None:
        self.inner()
        self.inner()

    def inner(self) -> None:
        """Do nothing."""


def test_nested_time_counts_only_for_the_inner_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by one microsecond per reading."""
    clock = itertools.count(0, 1000)
    monkeypatch.setattr(host_step.time, "thread_time_ns", lambda: next(clock))
    phases = Phases()
    work = _Work(phases)
    work.outer()
    with phases.phase("client"):
        work.inner()
    # Readings: enter outer, enter and leave inner twice, leave outer, enter client and inner, leave both, take.
    assert phases.take() == {"loop": 3.0, "outer": 3.0, "inner": 3.0}


def test_a_phase_that_most_steps_lack_gets_its_mean() -> None:
    result = medians([{"a": 1.0}, {"a": 3.0, "b": 6.0}, {"a": 5.0}])
    assert result == {"a": 3.0, "b": 2.0, "all": 5.0, "all, mean": 5.0}
