"""Errors planted in the kernels of experts."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_kernels._triton import INTERPRETED
from tests.support.planted import PlantedError, assert_caught

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")

PLANTED = (
    PlantedError(
        "wrong expert", "linear.grouped_matmul", "gate_up_matmul", "(ends <= block)", "(ends < block)"
    ),
    PlantedError(
        "missing tail",
        "linear.grouped_matmul",
        "down_matmul",
        "tl.range(0, K, BLOCK_K",
        "tl.range(0, K // BLOCK_K * BLOCK_K, BLOCK_K",
    ),
    PlantedError(
        "gate and up swapped",
        "linear.grouped_matmul",
        "gate_up_matmul",
        "sums = activated(sums, GATE) * ups",
        "sums = activated(ups, GATE) * sums",
    ),
    PlantedError(
        "silu for every kind",
        "linear.grouped_matmul",
        "gate_up_matmul",
        "activated(sums, GATE)",
        "sums * tl.sigmoid(sums)",
    ),
    PlantedError(
        "always renormalised", "linear.route", "route", "RENORMALISE=renormalise", "RENORMALISE=True"
    ),
    PlantedError(
        "wrong row",
        "linear.grouped_matmul",
        "gate_up_matmul",
        "(choices // CHOICES_PER_ROW)",
        "(choices % CHOICES_PER_ROW)",
    ),
    PlantedError(
        "share of another choice",
        "linear.grouped_matmul",
        "down_matmul",
        "tl.load(shares_ptr + choices,",
        "tl.load(shares_ptr + choices // 2,",
    ),
    PlantedError(
        "tiles skipped",
        "linear.grouped_matmul",
        "down_matmul",
        "column = program % a_group // group_size",
        "column = program % a_group // GROUP_M",
    ),
    PlantedError(
        "shares not renormalised",
        "linear.route",
        "route",
        "RENORMALISE=renormalise",
        "RENORMALISE=False",
    ),
    PlantedError(
        "padding is a real row",
        "linear.route",
        "route",
        "tl.zeros([BLOCK_M], tl.int32) + num_rows * TOP_K",
        "tl.zeros([BLOCK_M], tl.int32)",
    ),
    PlantedError(
        "equal logits are both selected",
        "linear.route",
        "route",
        "experts == tl.argmax(left, axis=1)[:, None]",
        "left == tl.max(left, axis=1)[:, None]",
    ),
    PlantedError(
        "no block for the tail",
        "linear.route",
        "route",
        "(counts + BLOCK_M - 1) // BLOCK_M",
        "counts // BLOCK_M",
    ),
    PlantedError("later rows overwrite", "linear.route", "route", "place += tl.sum(chosen)", "place += 0"),
    PlantedError(
        "padding is routed to experts", "linear.route", "route", "other=-1) >= 0)", "other=-1) >= -1)"
    ),
    PlantedError(
        "padding is summed",
        "linear.sum_choices",
        "sum_choices",
        "slots_ptr + row) >= 0",
        "slots_ptr + row) >= -1",
    ),
    PlantedError(
        "last part missing",
        "linear.sum_choices",
        "sum_choices",
        "static_range(TOP_K)",
        "static_range(TOP_K - 1)",
    ),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.check}: {planted.what}")
def test_planted_error_is_caught(planted: PlantedError, tmp_path: Path) -> None:
    assert_caught(planted, tmp_path)
