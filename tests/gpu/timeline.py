"""When the GPU did nothing, from the profiler's timeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from tests.gpu.timing import Call

SHORT_US = 5.0
"""Gaps between the kernels of a graph are shorter."""


def idle_share(calls: Sequence[Call]) -> float:
    """Share of the time from the first activity to the last that lies in gaps longer than `SHORT_US`."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for call in calls:
            call()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    return gaps(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == cuda
    )


def gaps(spans: Iterable[tuple[float, float]]) -> float:
    """spans: beginnings and ends, microseconds, overlapping as they may."""
    ordered = sorted(spans)
    if not ordered:
        raise ValueError("the profiler saw no work on the GPU")
    idle, busy_until = 0.0, ordered[0][1]
    for start, end in ordered:
        if start - busy_until > SHORT_US:
            idle += start - busy_until
        busy_until = max(busy_until, end)
    return idle / (busy_until - ordered[0][0])
