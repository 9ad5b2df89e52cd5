"""Tuning proposals with made-up figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from container.measure.compare.configurations import NamedPath
from container.measure.tune.goal import Goal
from container.measure.tune.search import Proposal
from tests.container.measure.compare.made_up import make_figures


def make_proposal(
    name: str, goal: Goal, changes: Mapping[str, str] | None = None, **values: float
) -> Proposal:
    """`values`: predicted tokens_per_second and latency, passed to `make_figures`."""
    figures = make_figures(**values)
    return Proposal(
        NamedPath(name, Path("/configs") / name), dict(changes or {}), figures, goal.values(figures)
    )


def names(proposals: Sequence[Proposal]) -> list[str]:
    return [one.name for one in proposals]
