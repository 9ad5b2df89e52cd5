"""Format numbers for tables and sentences: three significant digits, a unit, a dash for a missing value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

NO_VALUE = "-"
SECONDS = {"s": 1, "ms": 1000}
"""Units of time, with the number of each in a second."""


def read_quantity(text: str, units: Mapping[str, float]) -> float:
    """Parse a number with its unit, such as `500ms`; NaN if the text is not one.

    units: the number of each unit that makes 1.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(\D*)", text, re.ASCII)
    return float(match[1]) / units[match[2]] if match and match[2] in units else math.nan


def format_number(value: float) -> str:
    """Format with about three significant digits: 1.23e-06, 0.0123, 1.23, 12.3, 123, 1234, 1.23e+07."""
    if not math.isfinite(value):
        return NO_VALUE
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, digits)}f}" if -4 < digits <= 6 else f"{value:.2e}"


def interval(low: float, high: float) -> str:
    """Format the bounds of a ratio. Bounds beyond a factor of 1000 are cut off: the ratio is practically unknown."""
    bounds = (
        "less than 0.001" if low < 0.001 else format_number(low),
        "more than 1000" if high > 1000 else format_number(high),
    )
    return " to ".join(bounds)


def seconds(value: float) -> str:
    """Format a time with its unit: milliseconds below a second."""
    if not math.isfinite(value):
        return NO_VALUE
    return f"{format_number(value)} s" if value >= 1 else f"{format_number(value * 1000)} ms"


def percent(share: float | None) -> str:
    return NO_VALUE if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def gibibytes(num_bytes: float | None) -> str:
    return NO_VALUE if num_bytes is None else f"{num_bytes / 1024**3:.2f} GiB"
