"""Measure the ceilings of the device. Shares are relative to ceilings measured in the same process."""

from __future__ import annotations

import torch

from tests.gpu.context import Context
from tests.gpu.floors import Ceilings
from tests.gpu.timing import Timing, synchronize, time_calls, time_graph


def measure(context: Context) -> Ceilings:
    """Measure copies and matrix products. Takes a few seconds."""
    moved, copy = time_copy(context)
    context.results.figure(
        "ceiling: copy bandwidth", moved / copy.median / 1e12, "TB/s", "bytes read and written"
    )
    operations, product = time_matmul(context)
    rate = operations / product.median
    context.results.figure("ceiling: bf16 matmul", rate / 1e12, "TFLOP/s", "8192 x 8192 x 8192, random data")
    return Ceilings(moved / copy.median, rate)


def time_copy(context: Context) -> tuple[float, Timing]:
    """Return the bytes moved, half of them reads, and the time."""
    source = context.random(context.size(1 << 31, 1 << 16))
    target = torch.empty_like(source)
    timing = time_calls([lambda: target.copy_(source)], context.device)
    return 2.0 * source.numel() * source.element_size(), timing


def time_matmul(context: Context, repeats: int = 20) -> tuple[float, Timing]:
    """Return the number of operations and the time. With hundreds of repeats the device reaches its power limit."""
    size = context.size(8192, 64)
    a, b = context.random(size, size), context.random(size, size)
    out = torch.empty_like(a)
    timing = time_calls([lambda: torch.matmul(a, b, out=out)], context.device, repeats)
    return 2.0 * size**3, timing


def time_read(context: Context) -> tuple[float, Timing]:
    source = context.random(context.size(1 << 30, 1 << 16), dtype=torch.float32)
    timing = time_calls([source.sum], context.device)
    return float(source.numel() * source.element_size()), timing


def time_node(context: Context) -> Timing:
    """Time a minimal kernel in a graph."""
    number = torch.zeros(32, device=context.device)
    return time_graph([lambda: number.add_(1.0)] * context.size(1000, 5), context.device)


def time_to_device(context: Context) -> tuple[float, Timing]:
    count = context.size(1 << 30, 1 << 16)
    source = torch.empty(count, dtype=torch.uint8, pin_memory=context.device.type == "cuda").random_()
    target = torch.empty(count, dtype=torch.uint8, device=context.device)
    timing = time_calls([lambda: target.copy_(source, non_blocking=True)], context.device, repeats=5)
    return float(count), timing


def time_round_trip(context: Context) -> Timing:
    """Time copies of 256 numbers to the device and to the host, in pinned memory: the latency of waiting for tokens."""
    pinned = context.device.type == "cuda"
    sent = torch.zeros(256, dtype=torch.int32, pin_memory=pinned)
    received = torch.empty(256, dtype=torch.int32, pin_memory=pinned)
    target = torch.empty(256, dtype=torch.int32, device=context.device)

    def round_trip() -> None:
        target.copy_(sent, non_blocking=True)
        received.copy_(target, non_blocking=True)
        synchronize(context.device)

    return time_calls([round_trip], context.device)
