"""`gelu_and_mul` in plain torch, and the inputs that its kernel is checked with."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from lmi_kernels.elementwise.gelu_and_mul import Approximate, gelu_and_mul
from tests.kernels.references.check import ROUNDING, Inputs, OpCheck, Results
from tests.kernels.references.gelu import gelu_reference


def gelu_and_mul_reference(gate_up: torch.Tensor, approximate: Approximate) -> Results:
    """fp64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    if approximate == "none":
        return (gelu_reference(gate)[0] * up,)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return (gate / 2 * (1 + torch.tanh(inner)) * up,)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for rows, width in ((1, 1), (3, 7), (2, 1025)):
        for approximate in ("none", "tanh"):
            gate_up = torch.randn(rows, 2 * width, generator=generator) * 4
            yield {"gate_up": gate_up.to(dtype), "approximate": approximate}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The width is no constant of the kernel: this one covers all multiples of 16.
    for approximate in ("none", "tanh"):
        yield {
            "gate_up": torch.empty(32, 2 * 14336, dtype=dtype, device="meta"),
            "approximate": approximate,
        }


CHECKS = (OpCheck("gelu_and_mul", gelu_and_mul, gelu_and_mul_reference, _examples, _production, ROUNDING),)
