"""The search over a grid of configurations, and the shortlist of configurations to run."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.measure.compare.configurations import NamedPath
from container.measure.tune.goal import parse_goal
from container.measure.tune.search import Proposal, Rank, best_alike, pareto, search, shortlist
from container.measure.tune.space import Point
from tests.container.measure.compare.made_up import make_figures

GOAL = parse_goal("p95 latency < 10s, max tokens/s")
AXES = tuple(tuple(map(str, range(count))) for count in (6, 5, 2, 3))
START = ("1", "1", "0", "0")


def make_proposal(name: str, changes: Mapping[str, str], **values: float) -> Proposal:
    """`values`: predicted tokens_per_second and latency, passed to `make_figures`."""
    figures = make_figures(**values)
    return Proposal(NamedPath(name, Path()), dict(changes), figures, GOAL.values(figures))


def names(proposals: Sequence[Proposal]) -> list[str]:
    return [one.name for one in proposals]


class Surface:
    """Tokens/s over four axes: one peak, interacting axes, predictions that are off by up to 5 %."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._peaks = [self._rng.uniform(0, len(values) - 1) for values in AXES]
        self._widths = [self._rng.uniform(1, 4) for _ in AXES]
        self._interaction = self._rng.uniform(-0.3, 0.3)
        self.proposals: list[Proposal] = []

    def true_value(self, point: Point) -> float:
        distances = [
            (int(value) - peak) / width
            for value, peak, width in zip(point, self._peaks, self._widths, strict=True)
        ]
        interaction = self._interaction * distances[0] * distances[1]
        return 100 * math.exp((interaction - sum(one * one for one in distances)) / 2)

    def rank(self, point: Point) -> Rank:
        speed = self.true_value(point) * self._rng.uniform(0.95, 1.05)
        changes = {str(index): value for index, value in enumerate(point) if value != START[index]}
        proposal = make_proposal(",".join(point), changes, tokens_per_second=speed)
        self.proposals.append(proposal)
        return GOAL.rank(proposal.values)


@pytest.mark.parametrize("max_points", [80, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_a_few_real_runs_get_close_to_the_best_of_a_grid(seed: int, max_points: int) -> None:
    surface, grid = Surface(seed), list(itertools.product(*AXES))
    search(AXES, START, surface.rank, max_points)
    run = [START, *(tuple(one.name.split(",")) for one in shortlist(surface.proposals, GOAL, 3))]
    assert len(run) <= 4 <= 0.2 * len(grid)
    assert max(map(surface.true_value, run)) >= 0.95 * max(map(surface.true_value, grid))


@given(max_points=st.integers(1, 70), seed=st.integers(0, 9))
def test_each_point_is_ranked_once_up_to_the_limit(max_points: int, seed: int) -> None:
    axes, seen = AXES[1:], []

    def rank(point: Point) -> Rank:
        seen.append(point)
        return (0.0, float(random.Random(",".join(point)).random()))

    ranked = search(axes, START[1:], rank, max_points, seed)
    assert seen[0] == START[1:]
    assert len(seen) == len(set(seen)) == len(ranked) == min(max_points, 30)


def test_of_equal_predictions_the_shortlist_keeps_the_one_with_the_fewest_changes() -> None:
    proposals = [
        make_proposal("file", {}, tokens_per_second=50.0),
        make_proposal("three", {"a": "1", "b": "2", "c": "3"}, tokens_per_second=101.0),
        make_proposal("one", {"a": "1"}, tokens_per_second=100.0),
        make_proposal("next", {"a": "2"}, tokens_per_second=80.0),
        make_proposal("slow", {"a": "3"}, tokens_per_second=20.0),
        make_proposal("late", {"a": "4"}, tokens_per_second=200.0, latency=11.0),
    ]
    assert names(shortlist(proposals, GOAL, 2)) == ["one", "next"]
    assert names(shortlist(proposals, GOAL, 9)) == ["one", "next", "slow", "late"]
    failed = [make_proposal(name, {"a": name}, tokens_per_second=math.nan) for name in "12"]
    assert names(shortlist(failed, GOAL, 9)) == ["1", "2"]


def test_a_difference_below_the_simulations_accuracy_does_not_change_the_file() -> None:
    proposals = [
        make_proposal("more", {"a": "1"}, tokens_per_second=101.0),
        make_proposal("file", {}, tokens_per_second=100.0),
    ]
    assert names(best_alike(proposals, GOAL)) == ["file", "more"]
    assert shortlist(proposals, GOAL, 3) == []


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=12))
def test_no_proposal_of_the_pareto_set_is_dominated(figures: list[tuple[int, int]]) -> None:
    proposals = [
        make_proposal(str(index), {}, tokens_per_second=float(speed), latency=float(latency))
        for index, (speed, latency) in enumerate(figures)
    ]
    found = {(one.values["tokens/s"], one.values["p95 latency"]) for one in pareto(proposals, GOAL)}

    def is_dominated(speed: int, latency: int) -> bool:
        return any(a >= speed and b <= latency and (a, b) != (speed, latency) for a, b in figures)

    assert found == {pair for pair in figures if not is_dominated(*pair)}
