"""With native kernels, the result of a row is bit-identical in every batch. `cpu` has the same tests for attention,
sampling and linears with each instruction set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lmi_kernels import (
    activate_and_mul,
    embedding,
    experts,
    gated_linear,
    linear,
    pack,
    pack_experts,
    rms_norm,
    rotary_,
)
from lmi_kernels.cpu.library import load
from tests.support.seeds import fresh_generator, integers

pytestmark = pytest.mark.skipif(load() is None, reason="native kernels are not built here")

Compute = Callable[[torch.Tensor], torch.Tensor]
_COUNT = 96


def _assert_batch_invariant(compute: Compute, generator: torch.Generator) -> None:
    """compute: maps row numbers below `_COUNT`, possibly repeated, to results."""
    expected = compute(torch.arange(_COUNT))
    for num_rows in (*range(1, 24), 40, 57, 150):
        rows = torch.tensor(integers(generator, 0, _COUNT, num_rows))
        assert torch.equal(compute(rows), expected[rows]), num_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("out_features", "in_features"), [(192, 36), (960, 576)])
@torch.inference_mode()
def test_linears_and_embeddings(out_features: int, in_features: int, dtype: torch.dtype) -> None:
    generator = fresh_generator()
    weight = torch.randn(out_features, in_features, generator=generator).to(dtype)
    x = torch.randn(_COUNT, in_features, generator=generator)
    whole = pack(weight, torch.randn(out_features, generator=generator))
    _assert_batch_invariant(lambda rows: linear(x[rows], whole), generator)
    for gated in (pack(weight, gated="silu"), pack(weight, gated="gelu")):
        _assert_batch_invariant(lambda rows, gated=gated: gated_linear(x[rows], gated), generator)
    _assert_batch_invariant(lambda rows: embedding(rows, whole), generator)


@pytest.mark.parametrize(("hidden", "intermediate", "top_k"), [(36, 50, 3), (576, 192, 2)])
@torch.inference_mode()
def test_experts(hidden: int, intermediate: int, top_k: int) -> None:
    generator = fresh_generator()
    gate_up = torch.randn(6, 2 * intermediate, hidden, generator=generator) / hidden**0.5
    down = torch.randn(6, hidden, intermediate, generator=generator) / intermediate**0.5
    weights = pack_experts(gate_up, down)
    x = torch.randn(_COUNT, hidden, generator=generator)
    logits = torch.randn(_COUNT, 6, generator=generator)
    _assert_batch_invariant(lambda rows: experts(x[rows], logits[rows], weights, top_k), generator)


@pytest.mark.parametrize("hidden", [36, 576])
@torch.inference_mode()
def test_elementwise_operations(hidden: int) -> None:
    generator = fresh_generator()
    x = torch.randn(_COUNT, 2 * hidden, generator=generator)
    weight = torch.randn(2 * hidden, generator=generator)
    angles = torch.randn(_COUNT, 1, hidden // 9, generator=generator)

    def rotated(rows: torch.Tensor) -> torch.Tensor:
        heads = x[rows].view(len(rows), 18, -1).clone()
        rotary_(heads, angles[rows].cos(), angles[rows].sin())
        return heads

    _assert_batch_invariant(rotated, generator)
    _assert_batch_invariant(lambda rows: rms_norm(x[rows], weight, 1e-5), generator)
    _assert_batch_invariant(lambda rows: activate_and_mul(x[rows], "silu"), generator)
