"""Times of work on a device: medians over repeats, with their spread, and without the host's share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        return cls(statistics.median(seconds), min(seconds), max(seconds))


def time_graph(calls: Sequence[Call], device: torch.device, repeats: int = 20) -> Timing:
    """Calls one after the other, as one CUDA graph: gaps between launches are those of a graph. Seconds a call.

    Several calls on different buffers keep the device's cache from holding what the next one reads. On a CPU they
    are just called.
    """
    if device.type != "cuda":
        return time_calls(calls, device, repeats)
    for call in calls:
        call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Kept: what a call returns may not be freed and written again by the next.
        results = [call() for call in calls]
    timing = time_calls([graph.replay], device, repeats)
    del results
    count = len(calls)
    return Timing(timing.median / count, timing.low / count, timing.high / count)


def time_calls(calls: Sequence[Call], device: torch.device, repeats: int = 20) -> Timing:
    """Seconds a call, each round of calls timed by itself, after two rounds that are not. Where calls are shorter
    than the host takes to launch them, that is what is measured."""
    if device.type != "cuda":
        return Timing.of([_wall(calls) for _ in range(repeats)])
    for call in [*calls, *calls]:
        call()
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    torch.cuda.synchronize(device)
    for start, end in marks:
        start.record()
        for call in calls:
            call()
        end.record()
    torch.cuda.synchronize(device)
    return Timing.of([start.elapsed_time(end) / 1e3 / len(calls) for start, end in marks])


def _wall(calls: Sequence[Call]) -> float:
    started = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - started) / len(calls)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Deadline:
    """How long something may go on."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    @property
    def passed(self) -> bool:
        return self.left <= 0
