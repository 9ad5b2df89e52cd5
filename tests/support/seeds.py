"""Random tensors, with the seed in the output of a test that fails."""

from __future__ import annotations

import torch

from tests.support.randomness import random_seed


def fresh_generator() -> torch.Generator:
    """A generator whose seed is printed; `LMI_TEST_SEED` gives one to repeat a failure with."""
    seed = random_seed()
    print(f"seed {seed}; to repeat: LMI_TEST_SEED={seed}")
    return torch.Generator().manual_seed(seed)


def generator_from(seed: int) -> torch.Generator:
    """The generator of a seed that hypothesis drew, and prints when the example fails."""
    return torch.Generator().manual_seed(seed)


def integers(generator: torch.Generator, low: int, high: int, count: int) -> list[int]:
    """`count` whole numbers in [low, high)."""
    return torch.randint(low, high, (count,), generator=generator).tolist()
