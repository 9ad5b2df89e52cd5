"""The ratio of two configurations over paired rounds, with a confidence interval.

A busy machine makes all times longer by a few percent, so logarithms are averaged. Rounds with the same number have the
same requests and run close to each other in time, so they are paired. Something else that runs on the machine for a
second can double the time of a round, so of ten rounds or more the most extreme tenth at each end does not count.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

CONFIDENCE = 0.95
_ROUNDS_FOR_A_CUT = 10
"""One round of this many is cut at each end."""
_MAX_LOG = 700.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """The trimmed geometric mean of the ratios of `count` rounds, and the confidence interval of the true ratio."""

    value: float
    low: float
    """Lower bound; 0 for a single round."""
    high: float
    """Upper bound; infinite for a single round."""
    count: int

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low > 1.0 or self.high < 1.0

    @property
    def smallest_visible(self) -> float:
        """Smallest measured difference, as a share, at which an interval of this width excludes 1."""
        return math.sqrt(self.high / self.low) - 1.0 if self.low else math.inf


def ratio_of_rounds(ratios: Iterable[float], num_shares: int) -> Ratio | None:
    """Compute the paired t-interval of the trimmed mean (Tukey and McLaughlin 1963, Sankhya A 25) on the logarithms of
    ratios; None without a usable ratio. Below ten rounds it is Student's interval.

    Args:
        ratios: one per round; values that are not positive and finite are ignored.
        num_shares: number of shares of the error probability, of which this interval gets one. With one share per
            reported interval, all intervals hold together with probability 0.95 (Bonferroni correction). Holm's
            method has more power, but gives no intervals that agree with its decisions.
    """
    logs = sorted(math.log(ratio) for ratio in ratios if 0.0 < ratio < math.inf)
    if not logs:
        return None
    cut = len(logs) // _ROUNDS_FOR_A_CUT
    kept = logs[cut : len(logs) - cut]
    mean = statistics.fmean(kept)
    if len(logs) == 1:
        return Ratio(math.exp(mean), 0.0, math.inf, 1)
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    error = statistics.stdev(winsorized) * math.sqrt((len(logs) - 1) / (len(kept) * (len(kept) - 1)))
    half_width = t_quantile((1.0 - CONFIDENCE) / num_shares, len(kept) - 1) * error
    high = mean + half_width
    return Ratio(
        math.exp(mean),
        math.exp(mean - half_width),
        math.exp(high) if high < _MAX_LOG else math.inf,
        len(logs),
    )


@functools.cache
def t_quantile(error: float, freedom: int) -> float:
    """Return the t with P(|T| > t) = `error`, where T has Student's distribution with `freedom` degrees of freedom.

    Bisection on the angle atan(t / sqrt(freedom)), in which the distribution function is a finite sum.
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if 1.0 - _within(middle, freedom) > error:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Return P(|T| <= tan(angle) * sqrt(freedom)) (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for factor in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (factor - 1) / factor
    return (angle + sine * total) * 2 / math.pi if odd else sine * total
