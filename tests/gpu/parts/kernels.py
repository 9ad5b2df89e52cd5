"""Parts `kernels-...`: run every operation's own check on this device, and some at production sizes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, as_completed

from lmi_kernels._triton import INTERPRETED
from tests.gpu import large_kernels
from tests.gpu.context import Context
from tests.gpu.one_kernel import command, operations, run_in_process

_MAX_PROCESSES = 8


def run(context: Context, dtype: str) -> None:
    """Check each operation in a process of its own, several at once: most of the time goes to the compiler."""
    results = context.results
    # The interpreter is slow and computes bf16 wrongly. Other tests run all operations in it.
    names = ["rms_norm"] if INTERPRETED else operations()
    checked_dtype = "fp32" if INTERPRETED else dtype
    with ThreadPoolExecutor(min(_MAX_PROCESSES, os.cpu_count() or 1)) as pool:
        futures = {
            pool.submit(
                lambda name=name: run_in_process(command(name, checked_dtype), context.deadline.left)
            ): name
            for name in names
        }
        for name, compare in large_kernels.COMPARISONS.items() if dtype == "bf16" else ():
            with results.guard(name):
                error, allowed = compare(context)
                results.check(name, error <= allowed, f"relative error {error:.1e}, allowed {allowed:.0e}")
        for future in as_completed(futures):
            passed, text = future.result()
            results.check(f"{futures[future]}, {dtype}", passed, text)
