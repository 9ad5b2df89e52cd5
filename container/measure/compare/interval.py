"""The ratio of two configurations over paired rounds, with a confidence interval.

A busy machine makes all times longer by some per cent, so logarithms are averaged. Rounds with the same number had the
same requests and ran close to each other, so they are paired.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

CONFIDENCE = 0.95
_MAX_LOG = 700.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """The geometric mean of the ratios of `count` rounds, and the confidence interval of the true ratio."""

    value: float
    low: float
    """0 where one round leaves everything open."""
    high: float
    """Infinite where one round leaves everything open."""
    count: int

    @property
    def differs(self) -> bool:
        """The interval excludes 1."""
        return self.low > 1.0 or self.high < 1.0

    @property
    def smallest_visible(self) -> float:
        """The smallest measured difference, as a share, that excludes 1 with an interval of this width."""
        return math.sqrt(self.high / self.low) - 1.0 if self.low else math.inf


def ratio_of_rounds(ratios: Iterable[float], num_shares: int) -> Ratio | None:
    """Paired t-interval on the logarithms of ratios, one for each round; None without a round.

    Args:
        ratios: values that are not positive and finite are left out.
        num_shares: shares of the error probability; this interval gets one of them. With one for each interval that
            is reported, all of them hold with probability 0.95 by Bonferroni's correction. Holm's has more power, but
            gives no intervals that agree with its decisions.
    """
    logs = [math.log(ratio) for ratio in ratios if 0.0 < ratio < math.inf]
    if not logs:
        return None
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return Ratio(math.exp(mean), 0.0, math.inf, 1)
    quantile = t_quantile((1.0 - CONFIDENCE) / num_shares, len(logs) - 1)
    half_width = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    high = mean + half_width
    return Ratio(
        math.exp(mean),
        math.exp(mean - half_width),
        math.exp(high) if high < _MAX_LOG else math.inf,
        len(logs),
    )


@functools.cache
def t_quantile(error: float, freedom: int) -> float:
    """The t that a Student variable of `freedom` degrees exceeds in absolute value with probability `error`.

    Bisection on the angle atan(t / sqrt(freedom)), in which the distribution is a finite sum.
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if 1.0 - _within(middle, freedom) > error:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Probability of |T| <= tan(angle) * sqrt(freedom) (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for factor in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (factor - 1) / factor
    return (angle + sine * total) * 2 / math.pi if odd else sine * total
