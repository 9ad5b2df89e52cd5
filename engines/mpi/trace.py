"""The step trace (`option.step_trace`): one line of JSON per step, with arrivals, plan and duration.

For tests, simulators, and for finding out why a request waited.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from engines.core import Request
from engines.mpi.scheduler.step import Step

_BUFFER_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class StepTrace:
    """Writer of the trace file, which is overwritten. One thread. Without a path it writes nothing, at almost no
    cost. If writing fails, for example on a full disk, tracing stops with a warning."""

    def __init__(self, path: str) -> None:
        """Raises OSError when the file cannot be opened."""
        self._file: TextIO | None = None
        if path:
            # Closed by `close`: the file stays open as long as the engine runs.
            self._file = Path(path).open("w", encoding="utf-8", buffering=_BUFFER_BYTES)  # noqa: SIM115
        self._arrivals: list[dict[str, Any]] = []
        self._ends: list[dict[str, Any]] = []
        self._number = 0

    def record_arrival(self, request: Request) -> None:
        """Record an accepted request."""
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

    def record_end(self, request_id: str, reason: str) -> None:
        """Record the end of a request: its last output or its abort."""
        if self._file is not None:
            self._ends.append({"id": request_id, "reason": reason})

    def record_step(
        self,
        step: Step | None,
        start: float,
        seconds: Mapping[str, float],
        state: Callable[[], Mapping[str, int]],
    ) -> None:
        """Record a completed step, and the arrivals and ends since the last record.

        step: None to record only arrivals and ends.
        start: in seconds, on the clock of the arrivals; seconds: by part; state: returns the state of queue and cache.
        """
        if self._file is None:
            return
        plan: list[tuple[str, int, int]] = []
        if step is not None:
            ids = (sequence.id for sequence in step.sequences)
            plan = list(zip(ids, step.plan.starts, step.plan.query_lens, strict=True))
        record = {
            "step": self._number,
            "time": round(start, 6),
            "arrivals": self._arrivals,
            "plan": plan,
            "ends": self._ends,
            "seconds": {part: round(value, 7) for part, value in seconds.items()},
            **state(),
        }
        try:
            self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        except OSError as error:
            self._stop(error)
        self._arrivals, self._ends = [], []
        self._number += 1

    def flush(self, now: float, state: Callable[[], Mapping[str, int]]) -> None:
        """Record pending arrivals and ends, and flush the file. Called whenever the engine is idle, and at its end."""
        if self._arrivals or self._ends:
            self.record_step(None, now, {}, state)
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._stop(error)

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._stop(error)

    def _stop(self, error: OSError) -> None:
        """Stop tracing, because the file cannot be written."""
        logger.warning("cannot write the step trace (option.step_trace), so tracing stops: %s", error)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None
        self._arrivals, self._ends = [], []
