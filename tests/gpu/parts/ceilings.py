"""Part `ceilings`: the best speeds of the device."""

from __future__ import annotations

import torch

from tests.gpu import ceilings
from tests.gpu.context import Context


@torch.inference_mode()
def run(context: Context) -> None:
    results = context.results
    ceilings.measure(context)
    moved, timing = ceilings.time_read(context)
    results.figure("read bandwidth (a sum)", moved / timing.median / 1e12, "TB/s")
    results.time("minimal kernel in a graph", ceilings.time_node(context))
    moved, timing = ceilings.time_to_device(context)
    results.figure("copy from pinned memory to the device", moved / timing.median / 1e9, "GB/s")
    with results.guard("256 numbers to the device and back"):
        results.time("256 numbers to the device and back", ceilings.time_round_trip(context))
