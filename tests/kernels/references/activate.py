"""Reference for `activate` in plain torch, and the inputs of its check."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from lmi_kernels.elementwise.activate import Activation, activate
from tests.kernels.references.check import Inputs, OpCheck, Results


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    # (1 + tanh(z)) / 2 = sigmoid(2 z), which has no cancellation where tanh is near -1.
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


TORCH_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": lambda x: x / 2 * torch.erfc(-x / math.sqrt(2)),
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "relu2": lambda x: x.clamp(min=0) ** 2,
}


def activate_reference(x: torch.Tensor, kind: Activation) -> Results:
    return (TORCH_ACTIVATIONS[kind](x.double()),)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for kind in TORCH_ACTIVATIONS:
        for shape in ((1, 1), (3, 7), (5, 1025)):
            yield {"x": (torch.randn(shape, generator=generator) * 3).to(dtype), "kind": kind}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # The number of elements is not a constexpr: this one covers all multiples of 16.
    for kind in TORCH_ACTIVATIONS:
        yield {"x": torch.empty(32, 4 * 8192, dtype=dtype, device="meta"), "kind": kind}


CHECKS = (OpCheck("activate", activate, activate_reference, _examples, _production),)
