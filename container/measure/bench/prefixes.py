"""Shared prefixes of prompts: a few common texts, or the blocks of a trace."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from container.measure.bench.lengths import scale_count

_OWN_TOKENS = 4
"""Tokens of a prompt, special tokens included, outside its blocks. Prompts with the same prefix differ in these."""


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Each prompt begins with one of a few prefixes, drawn at random."""

    num_prefixes: int
    block_tokens: int
    """Tokens of a prefix."""

    def draw(self, count: int, rng: random.Random) -> list[tuple[int, ...]]:
        """Draw the block ids of `count` prompts."""
        return [(rng.randrange(self.num_prefixes),) for _ in range(count)]

    def describe(self) -> str:
        return f"{self.num_prefixes} shared prefixes of {self.block_tokens} tokens"


@dataclass(frozen=True, slots=True)
class RecordedPrefixes:
    """The blocks of a trace, in the trace's order."""

    block_ids: tuple[tuple[int, ...], ...]
    block_tokens: int

    def draw(self, count: int, rng: random.Random) -> list[tuple[int, ...]]:
        """Return the block ids of the first `count` prompts."""
        return list(self.block_ids[:count])

    def describe(self) -> str:
        return f"recorded prefixes in blocks of {self.block_tokens} tokens"


Prefixes = SharedPrefixes | RecordedPrefixes
"""A prompt begins with blocks of `block_tokens` tokens; equal block ids mean equal text."""


def scale_prefixes(prefixes: Prefixes | None, factor: float) -> Prefixes | None:
    """Return the prefixes with blocks of `factor` times as many tokens."""
    return prefixes and replace(prefixes, block_tokens=scale_count(prefixes.block_tokens, factor))


def block_ids(
    prefixes: Prefixes | None, prompt_tokens: Sequence[int], rng: random.Random
) -> list[tuple[int, ...]]:
    """Return the block ids of each prompt: the whole blocks that leave room for some tokens of its own."""
    if prefixes is None:
        return [()] * len(prompt_tokens)
    drawn = prefixes.draw(len(prompt_tokens), rng)
    return [
        ids[: max(0, tokens - _OWN_TOKENS) // prefixes.block_tokens]
        for ids, tokens in zip(drawn, prompt_tokens, strict=True)
    ]
