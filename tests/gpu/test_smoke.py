"""Run every part of the GPU check with tiny shapes on a CPU, in Triton's interpreter: it must finish, and its checks
must pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_kernels._triton import INTERPRETED
from tests.gpu.one_part import run_part
from tests.gpu.plan import PARTS
from tests.gpu.records import FILE, read
from tests.gpu.report import render

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check"),
    # Warnings of transformers and torch.
    pytest.mark.filterwarnings("ignore"),
]

_SIMILAR = {
    *("kernels-fp16", "kernels-fp32", "steps-large", "workload-8b"),
    *("engine-mixtral", "engine-others", "engine-falcon"),
}
"""Parts that differ from others only in the model or dtype."""
_ELSEWHERE = {"server"}
"""Tested in `test_serving.py`, without the interpreter."""


@pytest.mark.parametrize("part", [part for part in PARTS if part not in _SIMILAR | _ELSEWHERE])
def test_a_part_finishes_and_its_checks_pass(part: str, tmp_path: Path) -> None:
    # The interpreter is slow on a busy machine. Only `tune` always uses all of its time.
    seconds = PARTS[part].seconds * (1 if part == "tune" else 10)
    assert run_part(part, tmp_path, seconds, smoke=True) == 0
    (run,) = read([tmp_path / FILE])
    assert run["entries"]
    assert run["finished"]
    assert all(entry["passed"] is not False for entry in run["entries"])
    with pytest.raises(ValueError, match="smoke run"):
        render([run])
