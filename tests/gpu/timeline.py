"""Kernels and idle time of the GPU, from the profiler's timeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tests.gpu.timing import Call

SHORT_US = 5.0
"""Gaps between the kernels of a graph are shorter than this."""
_NAME = 70
"""Characters of a kernel's name to keep. Names in cuBLAS and torch have hundreds."""


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    count: int
    seconds: float
    """Total of all launches."""


def idle_share(calls: Sequence[Call]) -> float:
    """Return the share of time, from the first activity to the last, in gaps longer than `SHORT_US`."""
    return gaps((event.time_range.start, event.time_range.end) for event in _events(calls))


def kernels(calls: Sequence[Call]) -> list[Kernel]:
    """Return the kernels by name, the longest total time first."""
    return by_name(
        (str(event.name), (event.time_range.end - event.time_range.start) / 1e6) for event in _events(calls)
    )


def by_name(spans: Iterable[tuple[str, float]]) -> list[Kernel]:
    """Add up spans (names and seconds) by name, the longest total first."""
    totals: dict[str, tuple[int, float]] = {}
    for name, seconds in spans:
        count, total = totals.get(name[:_NAME], (0, 0.0))
        totals[name[:_NAME]] = count + 1, total + seconds
    return sorted((Kernel(name, *each) for name, each in totals.items()), key=lambda each: -each.seconds)


def _events(calls: Sequence[Call]) -> list[Any]:
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for call in calls:
            call()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    events = [event for event in profiler.events() if event.device_type == cuda]
    if not events:
        raise ValueError("the profiler saw no work on the GPU")
    return events


def gaps(spans: Iterable[tuple[float, float]]) -> float:
    """Return the share of time in gaps. spans: starts and ends in microseconds, which may overlap."""
    ordered = sorted(spans)
    if not ordered:
        raise ValueError("the profiler saw no work on the GPU")
    idle, busy_until = 0.0, ordered[0][1]
    for start, end in ordered:
        if start - busy_until > SHORT_US:
            idle += start - busy_until
        busy_until = max(busy_until, end)
    return idle / (busy_until - ordered[0][0])
