"""Every part of the GPU check with tiny shapes on a CPU, in Triton's interpreter: its code runs to its end, and what it
checks is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lmi_kernels._triton import INTERPRETED
from tests.gpu.check import PARTS, run_part
from tests.gpu.report import render
from tests.gpu.results import Results

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check"),
    # transformers' and torch's own.
    pytest.mark.filterwarnings("ignore"),
]

# One of those that differ in the model alone.
_TRIED = [
    part for part in PARTS if part not in ("kernels-fp16", "kernels-fp32", "steps-large", "workload-8b")
]


@pytest.mark.parametrize("part", _TRIED)
def test_a_part_runs_to_its_end(part: str, tmp_path: Path) -> None:
    file = tmp_path / f"{part}.json"
    results = Results(part, torch.device("cpu"), smoke=True, file=file)
    run_part(part, results, torch.device("cpu"), smoke=True, out=file)
    assert results.entries
    assert not results.failed
    seen = json.loads(file.read_text())
    assert seen["finished"]
    assert len(seen["entries"]) == len(results.entries)
    with pytest.raises(ValueError, match="smoke run"):
        render([seen])
