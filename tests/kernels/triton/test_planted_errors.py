"""Errors planted in the RMSNorm kernels. The comparison with the reference must catch each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_kernels._triton import INTERPRETED
from tests.support.planted import PlantedError, assert_caught

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")

PLANTED = (
    PlantedError(
        "missing tail",
        "elementwise.rms_norm",
        "rms_norm",
        "inside = columns < HIDDEN",
        "inside = columns < HIDDEN - 1",
    ),
    PlantedError(
        "the sum is not kept",
        "elementwise.norm_rows",
        "add_rms_norm",
        "tl.store(residual_ptr + first + columns, x",
        "tl.store(residual_ptr + first + columns, 0 * x",
        between=("elementwise.rms_norm",),
    ),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.check}: {planted.what}")
def test_planted_error_is_caught(planted: PlantedError, tmp_path: Path) -> None:
    assert_caught(planted, tmp_path)
