from __future__ import annotations

import pytest
import torch

from lmi_kernels import experts, pack_experts
from lmi_kernels._triton import INTERPRETED
from lmi_kernels.linear.route import max_blocks, route
from tests.kernels.references.experts import experts_reference
from tests.kernels.references.route import route_reference
from tests.support.op_parity import poisoned_memory
from tests.support.seeds import fresh_generator, integers

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_logits_select_existing_experts(bad: float) -> None:
    """A non-finite row must not make the products read outside of the weights or affect other rows."""
    generator = fresh_generator()
    logits = torch.randn(5, 3, generator=generator)
    logits[1], logits[3, 2] = bad, bad
    with poisoned_memory():
        routing = route(logits, top_k=2, block_m=16)
    places = routing.sorted_choices[: int(routing.block_ends[-1]) * 16]
    assert places[places < 10].sort().values.tolist() == list(range(10))
    assert bool((places <= 10).all())
    expected = route_reference(logits.nan_to_num(0, 0, 0), top_k=2, block_m=16)
    for row in (0, 2, 4):
        torch.testing.assert_close(
            routing.choice_weights[2 * row : 2 * row + 2].double(),
            expected.choice_weights[2 * row : 2 * row + 2],
        )


def test_max_blocks_bounds_every_distribution_of_rows() -> None:
    generator = fresh_generator()
    for _ in range(300):
        num_experts, block_m = integers(generator, 1, 9, 1)[0], integers(generator, 1, 5, 1)[0]
        counts = [
            count * kept
            for count, kept in zip(
                integers(generator, 0, 10, num_experts), integers(generator, 0, 2, num_experts), strict=True
            )
        ]
        blocks = sum(-(-count // block_m) for count in counts)
        assert blocks <= max_blocks(sum(counts), num_experts, block_m)
    assert max_blocks(1, 8, 16) == 1
    assert max_blocks(4096, 8, 128) == 39


def test_the_public_operation_uses_the_kernels_and_accepts_an_empty_batch() -> None:
    generator = fresh_generator()
    gate_up, down = torch.randn(3, 20, 8, generator=generator), torch.randn(3, 8, 10, generator=generator)
    x, logits = torch.randn(4, 8, generator=generator), torch.randn(4, 3, generator=generator)
    weights = pack_experts(gate_up, down)
    assert weights.per_expert is None
    (expected,) = experts_reference(x, logits, gate_up, down, 2)
    torch.testing.assert_close(experts(x, logits, weights, 2).double(), expected, rtol=1e-4, atol=1e-4)
    assert experts(x[:0], logits[:0], weights, 2).shape == (0, 8)
