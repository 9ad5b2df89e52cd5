"""Token counts of prompts and answers: distributions, and counts recorded in a trace."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol


class Lengths(Protocol):
    """A distribution of token counts. All drawn counts are at least 1."""

    @property
    def mean(self) -> float:
        """Mean of the drawn counts."""

    def draw(self, count: int, rng: random.Random) -> list[int]:
        """Draw the token counts of `count` prompts or answers."""

    def scaled(self, factor: float) -> Lengths:
        """Return the same distribution with all counts multiplied by `factor`."""

    def describe(self, unit: str) -> str:
        """Describe the distribution in words. unit: for example `tokens in`."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A constant count."""

    tokens: int

    @property
    def mean(self) -> float:
        return self.tokens

    def draw(self, count: int, rng: random.Random) -> list[int]:
        return [self.tokens] * count

    def scaled(self, factor: float) -> Fixed:
        return Fixed(scale_count(self.tokens, factor))

    def describe(self, unit: str) -> str:
        return f"{self.tokens} {unit}"


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform distribution between two bounds, both included."""

    shortest: int
    longest: int

    @classmethod
    def around(cls, mean: int) -> Uniform:
        """Return the distribution from half to one and a half times the mean."""
        return cls((mean + 1) // 2, mean + mean // 2)

    @property
    def mean(self) -> float:
        return (self.shortest + self.longest) / 2

    def draw(self, count: int, rng: random.Random) -> list[int]:
        return [rng.randint(self.shortest, self.longest) for _ in range(count)]

    def scaled(self, factor: float) -> Uniform:
        shortest = scale_count(self.shortest, factor)
        return Uniform(shortest, max(shortest, scale_count(2 * self.mean, factor) - shortest))

    def describe(self, unit: str) -> str:
        return f"{self.shortest} to {self.longest} {unit} (uniform)"


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponential distribution of counts from 1 to `longest`, of which none is above it."""

    mean: float
    """From 1 to half of `longest + 1`, which is the mean of a uniform distribution."""
    longest: int

    def draw(self, count: int, rng: random.Random) -> list[int]:
        scale = self._scale()
        share = math.expm1(-self.longest / scale)
        drawn = (math.ceil(-scale * math.log1p(rng.random() * share)) for _ in range(count))
        return [min(max(1, tokens), self.longest) for tokens in drawn]

    def at_most(self, longest: int) -> Exponential:
        """Return the distribution with the counts above `longest` redrawn, which lowers the mean."""
        return Exponential(_mean(self._scale(), longest), longest)

    def scaled(self, factor: float) -> Exponential:
        mean = max(1.0, self.mean * factor)
        return Exponential(mean, max(scale_count(self.longest, factor), math.ceil(2 * mean - 1)))

    def describe(self, unit: str) -> str:
        return f"1 to {self.longest} {unit} (exponential, mean {self.mean:.0f})"

    def _scale(self) -> float:
        """Return the mean that the distribution would have without `longest` and without rounding, by bisection."""
        low, high = 1e-2, 1e6 * self.longest
        for _ in range(100):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if _mean(middle, self.longest) < self.mean else (low, middle)
        return low


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal distribution. Counts below 1 or above twice the mean are redrawn."""

    mean: int
    deviation: float

    def draw(self, count: int, rng: random.Random) -> list[int]:
        return bounded(lambda: rng.gauss(self.mean, self.deviation), 2 * self.mean, count)

    def scaled(self, factor: float) -> Normal:
        return Normal(scale_count(self.mean, factor), self.deviation * factor)

    def describe(self, unit: str) -> str:
        return f"{self.mean} {unit} (normal, standard deviation {self.deviation:.3g})"


@dataclass(frozen=True, slots=True)
class ShortAndLong:
    """Mix of two counts, with a share of long ones."""

    short: int
    long: int
    share_long: float

    @property
    def mean(self) -> float:
        return self.short + self.share_long * (self.long - self.short)

    def draw(self, count: int, rng: random.Random) -> list[int]:
        return [self.long if rng.random() < self.share_long else self.short for _ in range(count)]

    def scaled(self, factor: float) -> ShortAndLong:
        return replace(self, short=scale_count(self.short, factor), long=scale_count(self.long, factor))

    def describe(self, unit: str) -> str:
        return f"{self.short} {unit} ({100 * self.share_long:g} % of them {self.long})"


@dataclass(frozen=True, slots=True)
class RecordedLengths:
    """The counts of a trace, in the trace's order."""

    tokens: tuple[int, ...]
    least: int = 1
    """Lower bound; smaller counts are raised to it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(max(self.least, count) for count in self.tokens))

    @property
    def mean(self) -> float:
        return statistics.fmean(self.tokens)

    def draw(self, count: int, rng: random.Random) -> list[int]:
        return list(self.tokens[:count])

    def first(self, count: int) -> RecordedLengths:
        """Return the counts of the first `count` requests, or of all if there are fewer."""
        return replace(self, tokens=self.tokens[:count])

    def scaled(self, factor: float) -> RecordedLengths:
        return replace(self, tokens=tuple(scale_count(tokens, factor) for tokens in self.tokens))

    def describe(self, unit: str) -> str:
        return f"{min(self.tokens)} to {max(self.tokens)} {unit} (recorded, mean {self.mean:.0f})"


def scale_count(count: float, factor: float) -> int:
    """Return `count * factor` rounded to an integer of at least 1; halves are rounded up."""
    return max(1, math.floor(count * factor + 0.5))


def _mean(scale: float, longest: int) -> float:
    """Return the mean of an exponential distribution, rounded up to integers, without those above `longest`."""
    beyond = longest * math.exp(-longest / scale) / math.expm1(-longest / scale)
    return beyond - 1 / math.expm1(-1 / scale)


def bounded(draw: Callable[[], float], longest: int, count: int) -> list[int]:
    """Draw `count` values from 1 to `longest`; values outside are redrawn."""
    found: list[int] = []
    while len(found) < count:
        drawn = round(draw())
        if 1 <= drawn <= longest:
            found.append(drawn)
    return found
