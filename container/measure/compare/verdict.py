"""The verdict of a comparison, in words."""

from __future__ import annotations

import math
from typing import Literal

from container.measure.compare.interval import Ratio
from container.measure.compare.results import Comparison
from container.measure.compare.summary import LATENCY_P90, TOKENS_PER_SECOND, Measure, ratio
from container.measure.numbers import NO_VALUE, format_number, interval, percent
from container.measure.sections import Finding

_MAX_BOUND = 0.25
"""If the difference may be larger than this share, the verdict is that there were too few rounds."""
_MULTIPLE = 2.0
"""Differences by this factor or more are said as a multiple, smaller ones in percent."""
_NOTHING_KNOWN = 10.0
"""If an interval reaches beyond this factor on both sides of 1, its bounds are not worth printing."""


def headline(comparison: Comparison) -> tuple[Finding, ...]:
    """Compare throughput and latency of each further configuration with the first configuration."""
    base, *others = [config.name for config in comparison.configs]
    found = []
    for scenario in comparison.plan.scenarios:
        for measure in (TOKENS_PER_SECOND, LATENCY_P90):
            for name in others:
                seen = ratio(comparison, name, base, scenario.name, measure)
                sentence = f"{in_words(seen, name, base, measure)}."
                found.append(Finding(f"{scenario.name}, {measure.title}", sentence, finding_kind(seen)))
    return tuple(found)


def finding_kind(seen: Ratio | None) -> Literal["difference", "same", "open"]:
    if seen and seen.differs:
        return "difference"
    return "same" if seen and _bound(seen) <= _MAX_BOUND else "open"


def _bound(seen: Ratio) -> float:
    """Return the largest difference, as a share, that the interval allows."""
    return max(seen.high, 1 / seen.low) - 1 if seen.low else math.inf


def in_words(seen: Ratio | None, name: str, base: str, measure: Measure) -> str:
    """Describe the ratio of `name` to `base`, in a sentence without its full stop."""
    if seen is None:
        return NO_VALUE
    if seen.count == 1:
        return "too few rounds: one round does not show the variation between rounds"
    if seen.low * _NOTHING_KNOWN < 1 < seen.high / _NOTHING_KNOWN:
        return f"too few rounds: {seen.count} rounds vary too much for a verdict"
    if seen.differs:
        return _difference(seen, name, base, measure)
    if _bound(seen) <= _MAX_BOUND:
        bound, visible = percent(_bound(seen)), percent(seen.smallest_visible)
        return (
            f"no difference larger than {bound} between {name} and {base} (this run could detect {visible})"
        )
    bounds = interval(seen.low, seen.high)
    return f"too few rounds: {name} may be {bounds} times {base}"


def _difference(seen: Ratio, name: str, base: str, measure: Measure) -> str:
    """Describe a difference. The better configuration (more tokens/s, or shorter times) comes first."""
    if (seen.value > 1) != measure.higher_is_better:
        name, base = base, name
        seen = Ratio(1 / seen.value, 1 / seen.high, 1 / seen.low, seen.count)
    if measure.higher_is_better and seen.value < _MULTIPLE:
        by, least, most = (percent(share) for share in (seen.value - 1, seen.low - 1, seen.high - 1))
        said = f"{name} is faster than {base} by {by}"
    elif measure.higher_is_better:
        by, least, most = (format_number(times) for times in (seen.value, seen.low, seen.high))
        said = f"{name} is {by} times as fast as {base}"
    elif seen.value > 1 / _MULTIPLE:
        by, least, most = (percent(share) for share in (1 - seen.value, 1 - seen.high, 1 - seen.low))
        said = f"{name} takes {by} less than {base}"
    else:
        by, least, most = (format_number(1 / times) for times in (seen.value, seen.high, seen.low))
        said = f"{base} takes {by} times as long as {name}"
    return f"{said} (95 % interval {least} to {most})"
