"""Decide when a comparison has enough rounds: by the width of its intervals, never by their position.

Stopping as soon as a difference shows would find one in nearly every comparison of equal configurations. Stopping by
width does not. The logarithms of the ratios are assumed to be normal, as the t-interval assumes anyway. Their mean is
then independent of the differences between rounds, which alone determine the width (Basu's theorem). The mean of a run
that stops by width is therefore as far from the truth as that of a fixed number of rounds. Of ten rounds or more a
trimmed mean is taken (`interval.py`), for which this holds nearly.

A smaller effect remains: rounds that happen to agree stop a run early, and their interval is too narrow (Anscombe 1952;
Chow and Robbins 1965, whose coverage is right in the limit only). Two measures compensate for it. The width is checked
rarely: each check comes after 1.4 times as many rounds as the one before. And the intervals are computed for a third of
the error probability (`EARLY_STOP_FACTOR`). In a simulation of normal rounds
(`tests/container/measure/compare/test_stopping.py`) the error then is at most the stated one, whatever the noise and
the precision.

A time limit does not depend on the ratios, but on the sum of all times, to which all configurations contribute alike.
"""

from __future__ import annotations

import math

from container.measure.compare.results import Comparison
from container.measure.compare.summary import TOKENS_PER_SECOND, ratio
from container.measure.numbers import percent

_GROWTH = 1.4
_MIN_ROUNDS = 5
"""Fewer rounds may agree by chance, however much rounds vary."""


def rounds_to_check(first: int, last: int) -> tuple[int, ...]:
    """Return the numbers of rounds after which the width is checked."""
    found = [min(max(first, _MIN_ROUNDS), last)]
    while found[-1] < last:
        found.append(min(last, max(found[-1] + 1, math.ceil(found[-1] * _GROWTH))))
    return tuple(found)


def widest(comparison: Comparison) -> float:
    """Return the largest half-width of the tokens/s intervals over all configurations and scenarios, as a share."""
    base, *others = [config.name for config in comparison.configs]
    found = (
        ratio(comparison, name, base, scenario.name, TOKENS_PER_SECOND)
        for name in others
        for scenario in comparison.plan.scenarios
    )
    return max((one.smallest_visible if one else math.inf for one in found), default=math.inf)


def reason_to_stop(comparison: Comparison, seconds: float) -> str:
    """Return why no round follows those of `comparison`; empty if another round follows.

    comparison: all rounds so far, which are complete; seconds: time since the first round began.
    """
    plan, done = comparison.plan, comparison.num_rounds
    rule = plan.stopping
    if rule is None:
        return "all planned rounds were run" if done >= plan.num_rounds else ""
    if done and seconds >= rule.max_seconds:
        return "the time limit was reached"
    if rule.precision is not None and done in rounds_to_check(plan.num_rounds, rule.max_rounds):
        width = widest(comparison)
        if width <= rule.precision:
            return f"the intervals of tokens/s are at most {percent(width)} to each side"
    return f"the limit of {rule.max_rounds} rounds was reached" if done >= rule.max_rounds else ""
