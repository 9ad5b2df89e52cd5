"""The counters of a handler's engine, kept by its dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engines.core import EngineInfo, EngineStats
from engines.invocations import Invocation, InvocationOutput
from engines.metrics import EngineMetrics


class HandlerMetrics(EngineMetrics):
    """The counters of every engine that make sense without tokens, and the restarts of workers. One thread."""

    def __init__(self) -> None:
        super().__init__()
        self.restarts = 0

    def observe_call(self, batch: Sequence[Invocation], now: float) -> None:
        """Observe the start of a call."""
        self.batch_size.observe(len(batch))
        for invocation in batch:
            self.queue_time.observe(max(0.0, now - invocation.arrival_time))

    def observe_output(self, output: InvocationOutput) -> None:
        if output.finished:
            self.finished += not output.error_kind
            self.failed += bool(output.error_kind)

    def snapshot(self, info: EngineInfo, gauges: dict[str, float]) -> EngineStats:
        stats = super().snapshot(info, gauges)
        return replace(stats, counters={**stats.counters, "lmi_worker_restarts_total": float(self.restarts)})
