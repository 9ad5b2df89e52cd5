"""Reference for `layer_norm` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lmi_kernels.elementwise.layer_norm import Affine, add_layer_norms, layer_norms
from tests.kernels.references.check import ROUNDING, Inputs, OpCheck, Results


def layer_norms_reference(x: torch.Tensor, affines: Sequence[Affine], eps: float) -> Results:
    x64 = x.double()
    x64 = x64 - x64.mean(-1, keepdim=True)
    normed = x64 * (x64.square().mean(-1, keepdim=True) + eps).rsqrt()
    return tuple(
        normed * weight.double() + (0 if bias is None else bias.double()) for weight, bias in affines
    )


def add_layer_norms_reference(x: torch.Tensor, residual: torch.Tensor, **rest: Any) -> Results:
    """Compute in fp64, except that the sum is rounded to x's dtype, in which it is stored."""
    total = (x.double() + residual.double()).to(x.dtype)
    return (*layer_norms_reference(total, **rest), total.double())


def _add_layer_norms(
    x: torch.Tensor, residual: torch.Tensor, affines: Sequence[Affine], eps: float
) -> Results:
    outs, total = add_layer_norms(x, residual, affines, eps)
    return (*outs, total)


def _examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    shapes = ((1, 1, "b"), (3, 36, "bb"), (5, 576, "b"), (2, 1000, "bb"), (3, 100, "-"), (2, 70, "-b"))
    for rows, hidden, biases in shapes:
        # Far from zero, like activations, so that the mean matters.
        affines = [(normal(hidden), normal(hidden) if bias == "b" else None) for bias in biases]
        yield {"x": normal(rows, hidden) + 3, "affines": affines, "eps": 1e-5}


def _add_examples(generator: torch.Generator, dtype: torch.dtype) -> Iterator[Inputs]:
    for inputs in _examples(generator, dtype):
        yield {**inputs, "residual": torch.randn(inputs["x"].shape, generator=generator).to(dtype)}


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # Falcon 11B, Falcon 7B, Falcon 40B's last norm, Falcon 40B's layers.
    for hidden, num_norms in ((4096, 1), (4544, 1), (8192, 1), (8192, 2)):
        x = torch.empty(32, hidden, dtype=dtype, device="meta")
        yield {"x": x, "affines": [(x[0], x[0])] * num_norms, "eps": 1e-5}
    # Without a bias: MPT and relatives of StarCoder2.
    x = torch.empty(32, 4096, dtype=dtype, device="meta")
    yield {"x": x, "affines": [(x[0], None)], "eps": 1e-5}


def _add_production(dtype: torch.dtype) -> Iterator[Inputs]:
    for inputs in _production(dtype):
        yield {**inputs, "residual": torch.empty_like(inputs["x"])}


CHECKS = (
    OpCheck("layer_norms", layer_norms, layer_norms_reference, _examples, _production, ROUNDING),
    OpCheck(
        "add_layer_norms",
        _add_layer_norms,
        add_layer_norms_reference,
        _add_examples,
        _add_production,
        ROUNDING,
    ),
)
