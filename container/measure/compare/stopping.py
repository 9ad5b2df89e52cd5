"""When a comparison has enough rounds: by the width of its intervals, never by where they lie.

Stopping as soon as a difference shows would find one in nearly every comparison of equal configurations. Stopping by
width does not: the logarithms of the ratios are taken as normal, as the t-interval takes them anyway, and then their
mean is independent of all the differences between rounds, from which alone the width comes (Basu's theorem). So the
mean of the rounds at which a run stops is as far from the truth as that of any fixed number of rounds.

What is left is a smaller effect: rounds that happen to agree stop a run early, and their interval is too narrow
(Anscombe 1952; Chow and Robbins 1965, whose coverage is right in the limit only). Two things pay for it. The width is
looked at after few rounds, each time 1.4 times as many as before. And the intervals are made for a third of the error
probability (`EARLY_STOP_FACTOR`): a simulation of normal rounds (`tests/container/measure/compare/test_stopping.py`)
puts the error then at no more than the stated one, whatever the noise and the precision.

A time limit is no function of the ratios: it depends on the sum of all times, in which the configurations are alike.
"""

from __future__ import annotations

import math

from container.measure.compare.results import Comparison
from container.measure.compare.summary import TOKENS_PER_SECOND, ratio
from container.measure.numbers import percent

_GROWTH = 1.4
_MIN_ROUNDS = 5
"""A few rounds may agree by chance however much rounds vary."""


def looks(first: int, last: int) -> tuple[int, ...]:
    """Numbers of rounds after which the width is looked at."""
    found = [min(max(first, _MIN_ROUNDS), last)]
    while found[-1] < last:
        found.append(min(last, max(found[-1] + 1, math.ceil(found[-1] * _GROWTH))))
    return tuple(found)


def widest(comparison: Comparison) -> float:
    """The largest half-width of the intervals of tokens/s over all configurations and scenarios, as a share."""
    base, *others = [config.name for config in comparison.configs]
    found = (
        ratio(comparison, name, base, scenario.name, TOKENS_PER_SECOND)
        for name in others
        for scenario in comparison.plan.scenarios
    )
    return max((one.smallest_visible if one else math.inf for one in found), default=math.inf)


def reason_to_stop(comparison: Comparison, seconds: float) -> str:
    """Why no round follows those of `comparison`; empty when one does.

    comparison: all rounds so far are complete; seconds: since the first one began.
    """
    plan, done = comparison.plan, comparison.num_rounds
    rule = plan.stopping
    if rule is None:
        return "all planned rounds were run" if done >= plan.num_rounds else ""
    if done and seconds >= rule.max_seconds:
        return "the time was over"
    if rule.precision is not None and done in looks(plan.num_rounds, rule.max_rounds):
        width = widest(comparison)
        if width <= rule.precision:
            return f"the intervals of tokens/s are {percent(width)} or less to each side"
    return f"the limit of {rule.max_rounds} rounds was reached" if done >= rule.max_rounds else ""
