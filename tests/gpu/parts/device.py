"""Part `device`: check that the machine has what the other parts need. If this part fails, no other part runs."""

from __future__ import annotations

import os
import shutil

import torch

from tests.gpu.context import Context
from tests.gpu.parts.races import find_sanitizer
from tests.gpu.timing import time_graph


@torch.inference_mode()
def run(context: Context) -> None:
    results, device = context.results, context.device
    # Allocate several sizes and free them in between, as steps do.
    for size in (1 << 10, 1 << 24, 1 << 12, 1 << 26):
        numbers = context.random(size, dtype=torch.float32)
    results.check("a computation succeeds", bool(torch.isfinite(numbers.sum())))
    timing = time_graph([lambda: numbers[:1024].add_(1.0)], device, repeats=context.size(20, 1))
    results.time("graph of one small kernel", timing)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        results.figure("free memory", free / 1e9, "GB", f"of {total / 1e9:.1f}")
    results.figure("processors", os.cpu_count() or 0, "", f"load {os.getloadavg()[0]:.1f}")
    results.missing("allocator", os.environ.get("PYTORCH_ALLOC_CONF", "torch's default"))
    results.missing("C compiler, for Triton's launchers", shutil.which("gcc") or "none")
    results.missing("compute-sanitizer", find_sanitizer() or "none")
