"""Reference for `activate_and_mul` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmi_kernels.elementwise.activate import Activation
from lmi_kernels.elementwise.activate_and_mul import activate_and_mul
from tests.kernels.references.activate import TORCH_ACTIVATIONS
from tests.kernels.references.check import Inputs, OpCheck, Results


def activate_and_mul_reference(gate_up: torch.Tensor, kind: Activation) -> Results:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (TORCH_ACTIVATIONS[kind](gate) * up,)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for kind in TORCH_ACTIVATIONS:
        for rows, width in ((1, 1), (3, 7), (2, 1025)):
            yield {"gate_up": (torch.randn(rows, 2 * width, generator=generator) * 4).to(dtype), "kind": kind}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The width is not a constexpr: this one covers all multiples of 16.
    for kind in TORCH_ACTIVATIONS:
        yield {"gate_up": torch.empty(32, 2 * 14336, dtype=dtype, device="meta"), "kind": kind}


CHECKS = (OpCheck("activate_and_mul", activate_and_mul, activate_and_mul_reference, _examples, _production),)
