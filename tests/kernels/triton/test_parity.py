"""Every Triton kernel against its reference in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from lmi_kernels._triton import INTERPRETED
from tests.kernels.references.check import OpCheck, all_checks
from tests.support.op_parity import check_parity
from tests.support.seeds import fresh_generator

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1: make kernels-check")


# Not bf16: the interpreter computes wrong products of bf16.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_kernel_equals_its_reference(check: OpCheck, dtype: torch.dtype) -> None:
    check_parity(check, dtype, fresh_generator())
