"""Search for the best points of a grid, and selection of the results."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from container.measure.bench.figures import Figures
from container.measure.compare.configurations import NamedPath
from container.measure.tune.goal import Goal, minimized_value
from container.measure.tune.space import Point

Rank = tuple[float, float]
"""Rank of a point; lower is better."""
WORST: Rank = (math.inf, math.inf)
_MAX_DIFFERENCE = 0.02
"""Relative difference below which a simulation cannot rank predictions."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration and its predicted figures."""

    file: NamedPath
    changes: dict[str, str]
    """Changes to the user's file, by option."""
    metrics: Figures
    values: dict[str, float]
    """Figures of the goal, by metric name."""

    @property
    def name(self) -> str:
        return self.file.name


def search(
    axes: Sequence[Sequence[str]], start: Point, rank: Callable[[Point], Rank], most: int, seed: int = 0
) -> dict[Point, Rank]:
    """Rank all points of a grid, or if there are more than `most`, those that a coordinate descent visits.

    The descent tries all values of one axis, continues from the best with the next axis, and stops when no axis has a
    better value. It starts at `start`, then at random points, until `most` points are ranked.
    """
    found: dict[Point, Rank] = {}

    def rank_once(point: Point) -> Rank:
        if point not in found and len(found) < most:
            found[point] = rank(point)
        return found.get(point, WORST)

    rank_once(start)
    if math.prod(map(len, axes)) <= most:
        for point in itertools.product(*axes):
            rank_once(point)
        return found
    rng = random.Random(seed)
    point = start
    while len(found) < most:
        _descend(point, axes, rank_once)
        point = tuple(rng.choice(values) for values in axes)
    return found


def _descend(point: Point, axes: Sequence[Sequence[str]], rank_once: Callable[[Point], Rank]) -> None:
    before: Point = ()
    while point != before:
        before = point
        for place, values in enumerate(axes):
            others = [(*point[:place], value, *point[place + 1 :]) for value in values]
            # On a tie, keep the current point, so that the descent does not oscillate.
            point = min([point, *others], key=rank_once)


def shortlist(proposals: Sequence[Proposal], goal: Goal, count: int) -> list[Proposal]:
    """Return the `count` best proposals with distinct predictions. Among similar ones, the fewest changes win.

    The original file is left out, since it is run anyway.
    """
    rest = list(proposals)
    found: list[Proposal] = []
    while rest and len(found) < count:
        alike = best_alike(rest, goal)
        names = {one.name for one in alike}
        rest = [one for one in rest if one.name not in names]
        found += alike[:1] if alike[0].changes else []
    return found


def best_alike(proposals: Sequence[Proposal], goal: Goal) -> list[Proposal]:
    """Return the best proposal and those that the simulation cannot tell from it, the fewest changes first."""
    best = min(proposals, key=lambda one: goal.rank(one.values))
    alike = [one for one in proposals if one is best or _are_alike(one, best, goal)]
    return sorted(alike, key=lambda one: (len(one.changes), goal.rank(one.values)))


def _are_alike(one: Proposal, best: Proposal, goal: Goal) -> bool:
    if goal.excess(one.values) > goal.excess(best.values):
        return False
    pairs = ((one.values[measure.key], best.values[measure.key]) for measure in goal.measures)
    return all(a == b or abs(a - b) <= _MAX_DIFFERENCE * abs(b) for a, b in pairs)


def pareto(proposals: Iterable[Proposal], goal: Goal) -> list[Proposal]:
    """Return the Pareto-optimal proposals by the goal's measures."""
    costs = [(one, [minimized_value(measure, one.values) for measure in goal.measures]) for one in proposals]
    ordered = sorted((pair for pair in costs if all(map(math.isfinite, pair[1]))), key=lambda pair: pair[1])
    found: list[tuple[Proposal, list[float]]] = []
    for one, values in ordered:
        # Earlier ones are no worse in the first measure: one of them may be at least as good in all.
        if not any(all(a <= b for a, b in zip(other, values, strict=True)) for _, other in found):
            found.append((one, values))
    return [one for one, _ in found]
