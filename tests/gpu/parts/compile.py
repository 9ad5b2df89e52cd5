"""Part `compile`: compile every operation's kernels as serving launches them, for this device and on all cores, so that
measurements find them in Triton's cache."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import torch

from lmi_kernels import tuning
from lmi_kernels._triton import INTERPRETED
from tests.gpu.context import Context
from tests.gpu.one_kernel import operations
from tests.kernels.references.check import all_checks
from tests.support.compile_only import compile_only


def run(context: Context) -> None:
    names = operations()
    if INTERPRETED:
        context.results.missing("compiled kernels", "the interpreter compiles nothing")
        return
    started = time.monotonic()
    workers = max(1, (os.cpu_count() or 2) // 2)
    # Not forked: this process already uses the GPU.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(compile_operation, name): name for name in names}
        total = 0
        for future in as_completed(futures):
            with context.results.guard(f"compiled: {futures[future]}"):
                total += future.result()
    seconds = time.monotonic() - started
    context.results.figure("kernels compiled", total, "", f"in {seconds:.0f} s by {workers} processes")


def compile_operation(name: str) -> int:
    """Compile an operation's kernels and their launchers. Return the number of different kernels."""
    device = torch.device("cuda", 0)
    seen: set[str] = set()

    def build_launcher(kernel: Any, kwargs: dict[str, Any]) -> None:
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            # The C compiler builds the launcher when it is first needed.
            kernel._init_handles()

    (check,) = (check for check in all_checks() if check.name == name)
    with compile_only(tuning.tables(device), tuning.num_multiprocessors(device), build_launcher):
        for inputs in check.production(torch.bfloat16):
            check.launch(**inputs)
    return len(seen)
