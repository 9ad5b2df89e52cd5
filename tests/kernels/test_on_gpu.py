"""Every operation on a GPU against its float64 reference, and some of them at production sizes. Requires only torch,
triton and pytest. `make gpu-check` runs the same checks and measures performance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu.context import Context
from tests.gpu.large_kernels import COMPARISONS
from tests.gpu.one_kernel import DTYPES
from tests.gpu.results import Results
from tests.gpu.timing import Deadline
from tests.kernels.references.check import OpCheck, all_checks
from tests.support.op_parity import check_parity
from tests.support.seeds import fresh_generator

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_kernel_equals_its_reference(check: OpCheck, dtype: torch.dtype) -> None:
    check_parity(check, dtype, fresh_generator(), "cuda")


@pytest.mark.parametrize("name", COMPARISONS)
@torch.inference_mode()
def test_kernel_is_accurate_at_production_sizes(name: str, tmp_path: Path) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    results = Results("kernels-bf16", device, smoke=False)
    context = Context(results, device, smoke=False, folder=tmp_path, out=tmp_path, deadline=Deadline(600.0))
    error, allowed = COMPARISONS[name](context)
    assert error <= allowed
