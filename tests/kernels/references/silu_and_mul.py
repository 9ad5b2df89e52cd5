"""`silu_and_mul` in plain torch, and the inputs that its kernel is checked with."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels.elementwise.silu_and_mul import silu_and_mul
from tests.kernels.references.check import ROUNDING, Inputs, OpCheck, Results


def silu_and_mul_reference(gate_up: torch.Tensor) -> Results:
    """fp64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up,)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, width in ((1, 1), (3, 7), (2, 1025), (5, 1536)):
        yield {"gate_up": (torch.randn(rows, 2 * width, generator=generator) * 4).to(dtype)}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The width is no constant of the kernel: this one covers all multiples of 16.
    yield {"gate_up": torch.empty(32, 2 * 14336, dtype=dtype, device="meta")}


CHECKS = (OpCheck("silu_and_mul", silu_and_mul, silu_and_mul_reference, _examples, _production, ROUNDING),)
