"""The slots of a batch over time: the requests that each slot computes, and the times in which it is empty.

Slots are read from an engine's step trace (`engines.mpi.trace`), or estimated from the times that a client measured.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_PAUSE_SECONDS = 0.05
"""Longest pause between two steps that counts as part of the first step: planning and sending outputs."""
_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class SlotSpan:
    """A period in which a slot computes one request without interruption."""

    slot: int
    request: int
    """Number of the request in order of arrival, from 0."""
    start: float
    """Seconds since the first span."""
    end: float
    is_prefill: bool


@dataclass(frozen=True, slots=True)
class SlotUse:
    """All spans of a run, at least one."""

    spans: tuple[SlotSpan, ...]
    is_traced: bool
    """Whether the spans come from a step trace."""

    @property
    def num_slots(self) -> int:
        """Number of slots that were in use at the same time."""
        return 1 + max(span.slot for span in self.spans)

    @property
    def seconds(self) -> float:
        return max(span.end for span in self.spans)

    @property
    def waste(self) -> float:
        """Share of the slots' time in which they computed nothing."""
        total = self.num_slots * self.seconds
        return 1 - sum(span.end - span.start for span in self.spans) / total if total > 0 else 0.0


def read_step_trace(path: Path, started: float, ended: float) -> SlotUse | None:
    """Read the slots in the steps that started between two times of the trace's clock.

    Returns None if the file cannot be read, is larger than 256 MiB, or has no such step. A truncated line and all
    lines after it are ignored.
    """
    steps: list[Mapping[str, Any]] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if path.stat().st_size > _MAX_BYTES:
            return None
        with path.open(encoding="utf-8") as file:
            steps.extend(step for line in file if started <= (step := json.loads(line))["time"] <= ended)
    with contextlib.suppress(KeyError, TypeError, ValueError):  # not a step trace
        return slots_of_steps(steps)
    return None


def slots_of_steps(steps: Sequence[Mapping[str, Any]]) -> SlotUse | None:
    """Return the slots in these steps of a step trace. Requests that arrived before the first step are left out."""
    arrivals = [arrival for step in steps for arrival in step["arrivals"]]
    numbers = {arrival["id"]: number for number, arrival in enumerate(arrivals)}
    prompt_tokens = {arrival["id"]: arrival["prompt_tokens"] for arrival in arrivals}
    running: dict[str, SlotSpan] = {}
    slots: dict[str, int] = {}
    spans: list[SlotSpan] = []
    for step, following in itertools.zip_longest(steps, steps[1:]):
        start, end = step["time"], _end(step, following)
        prefills = {
            request: first < prompt_tokens[request]
            for request, first, _ in step["plan"]
            if request in prompt_tokens
        }
        spans += [span for request, span in running.items() if request not in prefills]
        running = {request: span for request, span in running.items() if request in prefills}
        for request, is_prefill in prefills.items():
            span = running.get(request)
            if span is None:
                slots[request] = _free_slot(running.values(), slots.get(request))
            elif span.is_prefill == is_prefill and start <= span.end:
                running[request] = replace(span, end=end)
                continue
            else:
                spans.append(span)
            running[request] = SlotSpan(slots[request], numbers[request], start, end, is_prefill)
    return _start_at_zero([*spans, *running.values()], is_traced=True)


def _end(step: Mapping[str, Any], following: Mapping[str, Any] | None) -> float:
    """Return the end of a step, including the host's work after it."""
    end: float = step["time"] + sum(step["seconds"].values())
    return following["time"] if following and following["time"] <= end + _PAUSE_SECONDS else end


def _free_slot(running: Iterable[SlotSpan], earlier: int | None) -> int:
    """Return the slot that the request had before if it is free, else the first free slot."""
    taken = {span.slot for span in running}
    if earlier is not None and earlier not in taken:
        return earlier
    return next(slot for slot in itertools.count() if slot not in taken)


def slots_of_requests(times: Iterable[tuple[float, float]]) -> SlotUse | None:
    """Estimate the slots from the times of the first token and of the end of each request, in order of arrival.

    The time to the first token is left out: a client cannot see for how much of it the request was computed.
    """
    spans: list[SlotSpan] = []
    for number, (first, end) in sorted(enumerate(times), key=lambda item: item[1]):
        spans.append(
            SlotSpan(
                _free_slot((span for span in spans if span.end > first), None), number, first, end, False
            )
        )
    return _start_at_zero(spans, is_traced=False)


def _start_at_zero(spans: Sequence[SlotSpan], *, is_traced: bool) -> SlotUse | None:
    if not spans:
        return None
    begin = min(span.start for span in spans)
    moved = [replace(span, start=span.start - begin, end=span.end - begin) for span in spans]
    return SlotUse(tuple(sorted(moved, key=lambda span: (span.slot, span.start))), is_traced)
