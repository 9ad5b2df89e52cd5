"""Token counts of a workload: all the same, or spread like those of real users."""

from __future__ import annotations

import random
from enum import StrEnum

_LONGEST_ANSWER = 4
"""In means. Longer ones are drawn again, so the average is 7 % below the nominal mean."""


class Lengths(StrEnum):
    """Distribution of token counts."""

    FIXED = "fixed"
    SPREAD = "spread"
    """Prompts uniform from half to one and a half times their mean; answers exponential, at most 4 times their mean."""

    def prompt_tokens(self, mean: int, count: int, rng: random.Random) -> list[int]:
        """Tokens of each of `count` prompts, at least 1."""
        if self is Lengths.FIXED:
            return [mean] * count
        shortest, longest = _prompt_bounds(mean)
        return [rng.randint(shortest, longest) for _ in range(count)]

    def output_tokens(self, mean: int, count: int, rng: random.Random) -> list[int]:
        """Tokens of each of `count` answers, at least 1."""
        if self is Lengths.FIXED:
            return [mean] * count
        return [_exponential(mean, rng) for _ in range(count)]

    def describe(self, prompt_tokens: int, output_tokens: int) -> str:
        """The distribution in words, for given means."""
        if self is Lengths.FIXED:
            return f"{prompt_tokens} tokens in, {output_tokens} out"
        shortest, longest = _prompt_bounds(prompt_tokens)
        return (
            f"{shortest} to {longest} tokens in (uniform), 1 to {_LONGEST_ANSWER * output_tokens} out"
            f" (exponential, mean {output_tokens})"
        )


def _prompt_bounds(mean: int) -> tuple[int, int]:
    return (mean + 1) // 2, mean + mean // 2


def _exponential(mean: int, rng: random.Random) -> int:
    while True:
        drawn = round(rng.expovariate(1 / mean))
        if 1 <= drawn <= _LONGEST_ANSWER * mean:
            return drawn
