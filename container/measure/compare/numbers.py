"""Numbers as people read them: three digits that matter, units, a dash where there is none."""

from __future__ import annotations

import math

from container.measure.compare.interval import Ratio
from container.measure.compare.summary import Median

NOTHING = "-"


def number(value: float) -> str:
    """About three significant digits: 1.23e-06, 0.0123, 1.23, 12.3, 123, 1234, 1.23e+07."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, digits)}f}" if -4 < digits <= 6 else f"{value:.2e}"


def seconds(value: float) -> str:
    """With its unit: milliseconds below a second."""
    if not math.isfinite(value):
        return NOTHING
    return f"{number(value)} s" if value >= 1 else f"{number(value * 1000)} ms"


def percent(share: float | None) -> str:
    return NOTHING if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def gibibytes(num_bytes: float | None) -> str:
    return NOTHING if num_bytes is None else f"{num_bytes / 1024**3:.2f} GiB"


def spread(median: Median | None, scale: float = 1.0) -> str:
    """`median (smallest to largest)`; the median alone where there is one round."""
    if median is None:
        return NOTHING
    if median.count == 1:
        return number(median.value * scale)
    low, high = number(median.low * scale), number(median.high * scale)
    return f"{number(median.value * scale)} ({low} to {high})"


def times(ratio: Ratio | None) -> str:
    """`ratio (interval)`; the ratio alone where one round gives no interval."""
    if ratio is None:
        return NOTHING
    text = f"{number(ratio.value)}x"
    return text if ratio.count == 1 else f"{text} ({number(ratio.low)} to {number(ratio.high)})"
