"""Parts `kernels-...`: every operation's own check on this device, and some at the sizes of use."""

from __future__ import annotations

import torch

from lmi_kernels._triton import INTERPRETED
from lmi_kernels.checks import all_checks
from lmi_kernels.rms_norm import CHECKS
from tests.gpu import large_kernels
from tests.gpu.context import Context
from tests.support.op_parity import check_parity
from tests.support.seeds import fresh_generator

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def run(context: Context, dtype: str) -> None:
    """A dtype a part: there are hundreds of variants to compile."""
    results = context.results
    # The interpreter is slow, and wrong about bf16: there all operations have tests of their own.
    for check in all_checks() if not INTERPRETED else CHECKS:
        with results.guard(f"{check.name}, {dtype}"):
            tried = DTYPES["fp32" if INTERPRETED else dtype]
            count = check_parity(check, tried, fresh_generator(), context.device.type)
            results.check(f"{check.name}, {dtype}", True, f"{count} examples")
    for name, compare in large_kernels.COMPARISONS.items() if dtype == "bf16" else ():
        with results.guard(name):
            error, allowed = compare(context)
            results.check(name, error <= allowed, f"relative error {error:.1e}, allowed {allowed:.0e}")
