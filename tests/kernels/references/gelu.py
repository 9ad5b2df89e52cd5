"""`gelu` in plain torch, and the inputs that its kernel is checked with."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from lmi_kernels.elementwise.gelu import gelu
from tests.kernels.references.check import ROUNDING, Inputs, OpCheck, Results


def gelu_reference(x: torch.Tensor) -> Results:
    """fp64."""
    wide = x.double()
    return (wide / 2 * (1 + torch.erf(wide / math.sqrt(2))),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for shape in ((1, 1), (3, 7), (5, 1025)):
        yield {"x": (torch.randn(shape, generator=generator) * 3).to(dtype)}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The count is no constant of the kernel: this one covers all multiples of 16.
    yield {"x": torch.empty(32, 4 * 8192, dtype=dtype, device="meta")}


CHECKS = (OpCheck("gelu", gelu, gelu_reference, _examples, _production, ROUNDING),)
