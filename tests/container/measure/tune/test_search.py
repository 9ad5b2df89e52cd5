"""The search: the best of a grid with few real runs, and what is worth running."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.measure.compare.configurations import NamedPath
from container.measure.tune.goal import parse_goal
from container.measure.tune.search import Proposal, Rank, best_alike, pareto, search, shortlist
from container.measure.tune.space import Point
from tests.container.measure.compare.made_up import make_figures
from tests.container.measure.tune.made_up import make_proposal, names

GOAL = parse_goal("p95 latency < 10s, max tokens/s")
AXES = tuple(tuple(map(str, range(count))) for count in (6, 5, 2, 3))
START = ("1", "1", "0", "0")


class Surface:
    """Tokens/s with one peak, along axes that influence each other; predictions are off by up to 5 %."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._peaks = [self._rng.uniform(0, len(values) - 1) for values in AXES]
        self._widths = [self._rng.uniform(1, 4) for _ in AXES]
        self._mixed = self._rng.uniform(-0.3, 0.3)
        self.proposals: list[Proposal] = []

    def real(self, point: Point) -> float:
        distances = [
            (int(value) - peak) / width
            for value, peak, width in zip(point, self._peaks, self._widths, strict=True)
        ]
        mixed = self._mixed * distances[0] * distances[1]
        return 100 * math.exp((mixed - sum(one * one for one in distances)) / 2)

    def rank(self, point: Point) -> Rank:
        figures = make_figures(self.real(point) * self._rng.uniform(0.95, 1.05))
        changes = {str(place): value for place, value in enumerate(point) if value != START[place]}
        made = Proposal(NamedPath(",".join(point), Path()), changes, figures, GOAL.values(figures))
        self.proposals.append(made)
        return GOAL.rank(made.values)


@pytest.mark.parametrize("most", [80, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_a_few_real_runs_find_nearly_the_best_of_a_grid(seed: int, most: int) -> None:
    surface, grid = Surface(seed), list(itertools.product(*AXES))
    search(AXES, START, surface.rank, most)
    run = [START, *(tuple(one.name.split(",")) for one in shortlist(surface.proposals, GOAL, 3))]
    assert len(run) <= 4 <= 0.2 * len(grid)
    assert max(map(surface.real, run)) >= 0.95 * max(map(surface.real, grid))


@given(most=st.integers(1, 70), seed=st.integers(0, 9))
def test_no_more_points_are_ranked_than_allowed_and_none_twice(most: int, seed: int) -> None:
    axes, seen = AXES[1:], []

    def rank(point: Point) -> Rank:
        seen.append(point)
        return (0.0, float(random.Random(",".join(point)).random()))

    found = search(axes, START[1:], rank, most, seed)
    assert seen[0] == START[1:]
    assert len(seen) == len(set(seen)) == len(found) == min(most, 30)


def test_the_shortlist_has_different_predictions_and_of_equal_ones_the_fewest_changes() -> None:
    proposals = [
        make_proposal("file", GOAL, tokens_per_second=50.0),
        make_proposal("three", GOAL, {"a": "1", "b": "2", "c": "3"}, tokens_per_second=101.0),
        make_proposal("one", GOAL, {"a": "1"}, tokens_per_second=100.0),
        make_proposal("next", GOAL, {"a": "2"}, tokens_per_second=80.0),
        make_proposal("slow", GOAL, {"a": "3"}, tokens_per_second=20.0),
        make_proposal("late", GOAL, {"a": "4"}, tokens_per_second=200.0, latency=11.0),
    ]
    assert names(shortlist(proposals, GOAL, 2)) == ["one", "next"]
    assert names(shortlist(proposals, GOAL, 9)) == ["one", "next", "slow", "late"]
    failed = [make_proposal(name, GOAL, {"a": name}, tokens_per_second=math.nan) for name in "12"]
    assert names(shortlist(failed, GOAL, 9)) == ["1", "2"]


def test_a_difference_that_no_simulation_sees_is_no_reason_to_change_the_file() -> None:
    proposals = [
        make_proposal("more", GOAL, {"a": "1"}, tokens_per_second=101.0),
        make_proposal("file", GOAL, tokens_per_second=100.0),
    ]
    assert names(best_alike(proposals, GOAL)) == ["file", "more"]
    assert shortlist(proposals, GOAL, 3) == []


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=12))
def test_the_pareto_set_is_what_nothing_beats(figures: list[tuple[int, int]]) -> None:
    proposals = [
        make_proposal(str(place), GOAL, tokens_per_second=float(speed), latency=float(latency))
        for place, (speed, latency) in enumerate(figures)
    ]
    found = {(one.values["tokens/s"], one.values["p95 latency"]) for one in pareto(proposals, GOAL)}

    def beaten(speed: int, latency: int) -> bool:
        return any(a >= speed and b <= latency and (a, b) != (speed, latency) for a, b in figures)

    assert found == {pair for pair in figures if not beaten(*pair)}
