"""The measurement of the host's part of a step: it serves its load, and every microsecond is in one phase."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.gpu import host_step
from tests.gpu.host_step import TINY, Phases, measure, medians

_PHASES = {
    "schedule",
    "lead",
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


def test_a_load_is_served_to_its_end(tmp_path: Path) -> None:
    steps = measure(TINY, tmp_path)
    # The last tokens of the last request come alone; every other step is one of more than half.
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
        """Nothing."""


def test_time_within_an_inner_phase_is_not_the_outer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that goes on by a microsecond at each look."""
    clock = itertools.count(0, 1000)
    monkeypatch.setattr(host_step.time, "thread_time_ns", lambda: next(clock))
    phases = Phases()
    work = _Work(phases)
    work.outer()
    with phases.phase("client"):
        work.inner()
    # Looks: into outer 1; into, out of inner twice; out of outer; then into client, inner, out of both; the take's.
    assert phases.take() == {"loop": 3.0, "outer": 3.0, "inner": 3.0}


def test_a_phase_of_few_steps_is_its_mean() -> None:
    found = medians([{"a": 1.0}, {"a": 3.0, "b": 6.0}, {"a": 5.0}])
    assert found == {"a": 3.0, "b": 2.0, "all": 5.0, "all, mean": 5.0}
