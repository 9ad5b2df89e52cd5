"""Penalties to check kernels with. Their reference is `penalize` on a CPU, which test_sampling.py compares with the
sampler's own steps."""

from __future__ import annotations

import torch

from lmi_kernels import Penalties


def example_penalties(generator: torch.Generator, num_rows: int, vocab_size: int) -> Penalties:
    """Return penalties for some of the rows. Half of the tokens have no count, and some counts are at the maximum."""
    counts = torch.randint(0, 7, (num_rows + 2, vocab_size), generator=generator).to(torch.int16)
    counts[torch.rand(counts.shape, generator=generator) < 0.5] = 0
    counts[:, 1::11] = 2**15 - 1
    repetition = torch.rand(num_rows, dtype=torch.float64, generator=generator).add_(0.6)
    presence, frequency = torch.randn(2, num_rows, dtype=torch.float64, generator=generator)
    return Penalties(
        counts,
        torch.randperm(num_rows + 2, generator=generator)[:num_rows],
        (torch.rand(num_rows, generator=generator) < 0.4).long(),
        torch.stack((repetition, presence, frequency * 1e-2)),
    )


def production_penalties(num_rows: int, vocab_size: int) -> Penalties:
    rows = torch.empty(num_rows, dtype=torch.int64, device="meta")
    counts = torch.empty(num_rows + 1, vocab_size, dtype=torch.int16, device="meta")
    return Penalties(counts, rows, rows, torch.empty(3, num_rows, dtype=torch.float64, device="meta"))
