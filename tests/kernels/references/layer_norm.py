"""Reference for `layer_norm` in plain torch, and the inputs of its check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from lmi_kernels.elementwise.layer_norm import Affine, add_layer_norms, layer_norms
from tests.kernels.references.check import Inputs, OpCheck, Results, with_residual


def layer_norms_reference(x: torch.Tensor, affines: Sequence[Affine], eps: float) -> Results:
    return tuple(
        F.layer_norm(x.double(), x.shape[-1:], weight.double(), None if bias is None else bias.double(), eps)
        for weight, bias in affines
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


def _production(dtype: torch.dtype) -> Iterator[Inputs]:
    # Falcon 11B, Falcon 7B, Falcon 40B's last norm, Falcon 40B's layers.
    for hidden, num_norms in ((4096, 1), (4544, 1), (8192, 1), (8192, 2)):
        x = torch.empty(32, hidden, dtype=dtype, device="meta")
        yield {"x": x, "affines": [(x[0], x[0])] * num_norms, "eps": 1e-5}
    # Without a bias: MPT and relatives of StarCoder2.
    x = torch.empty(32, 4096, dtype=dtype, device="meta")
    yield {"x": x, "affines": [(x[0], None)], "eps": 1e-5}


CHECKS = (
    OpCheck("layer_norms", layer_norms, layer_norms_reference, _examples, _production),
    OpCheck(
        "add_layer_norms",
        _add_layer_norms,
        add_layer_norms_reference,
        lambda generator, dtype: with_residual(_examples(generator, dtype), generator),
        lambda dtype: with_residual(_production(dtype)),
    ),
)
