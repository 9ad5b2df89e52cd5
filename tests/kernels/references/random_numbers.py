"""Reference for `random_numbers` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels._triton import cdiv, jit, tl
from lmi_kernels.sampling.random_numbers import EXACT, gumbel, row_keys_of
from lmi_kernels.sampling.random_numbers_cpu import noise, row_keys
from tests.kernels.references.check import Inputs, OpCheck, Results

_BLOCK = 1024


@jit
def _noise_kernel(seed_ptr, position_ptr, noise_ptr, num_tokens, BLOCK: tl.constexpr):
    """Each program computes one block of a row."""
    row = tl.program_id(0).to(tl.int64)
    first, second, third, fourth = row_keys_of(tl.load(seed_ptr + row), tl.load(position_ptr + row))
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    places = noise_ptr + row * num_tokens + tokens
    tl.store(places, gumbel(tokens, first, second, third, fourth), mask=tokens < num_tokens)


def gumbel_noise_triton(seeds: torch.Tensor, positions: torch.Tensor, num_tokens: int) -> Results:
    """Store the kernels' noise. Serving never stores noise, so only this check has such a kernel."""
    out = torch.empty(len(seeds), num_tokens, dtype=torch.float32, device=seeds.device)
    _noise_kernel[(len(seeds), cdiv(num_tokens, _BLOCK))](
        seeds, positions, out, num_tokens, BLOCK=_BLOCK, **EXACT
    )
    return (out,)


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, num_tokens: int) -> Results:
    """Return the noise of tokens [0, num_tokens) of each row, fp32. seeds, positions: [num_rows], int64, on the CPU."""
    keys = row_keys(seeds[:, None], positions[:, None])
    return (noise(torch.arange(num_tokens, dtype=torch.int32).expand(len(seeds), -1), keys),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, num_tokens in ((2, 30000), (3, 1)):
        seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
        positions = torch.randint(2**40, (rows,), generator=generator)
        yield {"seeds": seeds, "positions": positions, "num_tokens": num_tokens}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    rows = torch.empty(32, dtype=torch.int64, device="meta")
    yield {"seeds": rows, "positions": rows, "num_tokens": 128256}


CHECKS = (OpCheck("gumbel_noise", gumbel_noise_triton, gumbel_noise, _examples, _production, exact=True),)
