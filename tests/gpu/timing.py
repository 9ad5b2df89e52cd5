"""Time work on a device: medians over repeats, with their spread, without the host's share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        return cls(statistics.median(seconds), min(seconds), max(seconds))


def time_graph(calls: Sequence[Call], device: torch.device, repeats: int = 20) -> Timing:
    """Time calls, one after the other, as one CUDA graph. Gaps between launches are those of a graph.

    Several calls on different buffers prevent the device's cache from holding the next call's data. On a CPU there is
    no graph.
    """
    if device.type != "cuda":
        return time_calls(calls, device, repeats)
    for call in calls:
        call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Keep the results, so that a call does not overwrite the result of the previous one.
        results = [call() for call in calls]
    timing = time_calls([graph.replay], device, repeats)
    del results
    count = len(calls)
    return Timing(timing.median / count, timing.low / count, timing.high / count)


def time_calls(calls: Sequence[Call], device: torch.device, repeats: int = 20) -> Timing:
    """Time each round of calls, after two rounds to warm up. If calls are shorter than their launches on the host, this
    measures the launches."""
    if device.type != "cuda":
        return Timing.of([_wall(calls) for _ in range(repeats)])
    for call in [*calls, *calls]:
        call()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    torch.cuda.synchronize(device)
    for start, end in events:
        start.record()
        for call in calls:
            call()
        end.record()
    torch.cuda.synchronize(device)
    return Timing.of([start.elapsed_time(end) / 1e3 / len(calls) for start, end in events])


def _wall(calls: Sequence[Call]) -> float:
    started = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - started) / len(calls)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Deadline:
    """Time limit."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    @property
    def passed(self) -> bool:
        return self.left <= 0
