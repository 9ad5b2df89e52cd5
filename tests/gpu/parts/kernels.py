"""Part `kernels`: every operation's own check on this device, and attention and experts where sizes are those of use."""

from __future__ import annotations

import torch

from lmi_kernels._triton import INTERPRETED
from lmi_kernels.checks import all_checks
from tests.gpu import large_kernels
from tests.gpu.context import Context
from tests.support.op_parity import check_parity
from tests.support.seeds import fresh_generator

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def run(context: Context) -> None:
    results = context.results
    # The interpreter's products of bf16 are garbage, and it is slow: there all operations have tests of their own.
    checks = all_checks()[:2] if INTERPRETED else all_checks()
    dtypes = {"fp32": torch.float32} if INTERPRETED else DTYPES
    for check in checks:
        for name, dtype in dtypes.items():
            with results.guard(f"{check.name}, {name}"):
                count = check_parity(check, dtype, fresh_generator(), context.device.type)
                results.check(f"{check.name}, {name}", True, f"{count} examples")
    for name, compare in large_kernels.COMPARISONS.items():
        with results.guard(name):
            error, allowed = compare(context)
            results.check(name, error <= allowed, f"relative error {error:.1e}, allowed {allowed:.0e}")
