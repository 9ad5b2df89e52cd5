"""Generators of random tensors, with the seed in the output of a failing test."""

from __future__ import annotations

import torch

from tests.support.randomness import random_seed


def fresh_generator() -> torch.Generator:
    """A generator with a printed seed. To repeat a failure, set `LMI_TEST_SEED` to that seed."""
    seed = random_seed()
    print(f"seed {seed}; to repeat: LMI_TEST_SEED={seed}")
    return torch.Generator().manual_seed(seed)


def generator_from(seed: int) -> torch.Generator:
    """A generator for a seed that hypothesis draws, and prints when the example fails."""
    return torch.Generator().manual_seed(seed)


def integers(generator: torch.Generator, low: int, high: int, count: int) -> list[int]:
    """Draw `count` integers in [low, high)."""
    return torch.randint(low, high, (count,), generator=generator).tolist()
