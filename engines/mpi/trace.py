"""Every step as a line of JSON (`option.step_trace`): what came, what was planned, how long it took.

Raw material for tests, simulators and anybody who asks why a request waited.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engines.core import Request
from engines.mpi.scheduler.step import Step

_BUFFER_BYTES = 1 << 20


class StepTrace:
    """Writes the file anew. One thread. Without a path it writes nothing, at next to no cost."""

    def __init__(self, path: str) -> None:
        """Raises OSError: the file cannot be written."""
        self._file = None
        if path:
            # Closed by `close`: it lives as long as the engine.
            self._file = Path(path).open("w", encoding="utf-8", buffering=_BUFFER_BYTES)  # noqa: SIM115
        self._arrivals: list[dict[str, Any]] = []
        self._ends: list[dict[str, Any]] = []
        self._number = 0

    def arrived(self, request: Request) -> None:
        """A request was accepted."""
        if self._file is not None:
            self._arrivals.append(
                {
                    "id": request.id,
                    "time": request.arrival_time,
                    "prompt_tokens": len(request.prompt_token_ids),
                    "max_new_tokens": request.sampling.max_new_tokens,
                    "priority": request.priority,
                    "tenant": request.tenant,
                }
            )

    def ended(self, request_id: str, reason: str) -> None:
        """A request has its last output, or nobody wants one any more."""
        if self._file is not None:
            self._ends.append({"id": request_id, "reason": reason})

    def step(
        self, step: Step, start: float, seconds: Mapping[str, float], state: Callable[[], Mapping[str, int]]
    ) -> None:
        """A step was done.

        start: on the clock of the arrivals, in seconds; seconds: by part; state: tells that of queue and cache.
        """
        if self._file is None:
            return
        plan = step.plan
        record = {
            "step": self._number,
            "time": round(start, 6),
            "arrivals": self._arrivals,
            "plan": [
                [sequence.id, first, count]
                for sequence, first, count in zip(step.sequences, plan.starts, plan.query_lens, strict=True)
            ],
            "ends": self._ends,
            "seconds": {part: round(value, 7) for part, value in seconds.items()},
            **state(),
        }
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._arrivals, self._ends = [], []
        self._number += 1

    def flush(self) -> None:
        """Write out what is kept: whenever the engine has nothing to do."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
