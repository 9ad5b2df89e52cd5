"""The counters of engine=Python, kept by its dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engines.core import EngineInfo, EngineStats, Request, RequestOutput
from engines.metrics import EngineMetrics
from engines.python.running import Running


class DispatchMetrics(EngineMetrics):
    """The counters of every engine, and those of dynamic batching. One thread.

    `lmi_batch_size` is observed once for each batch, when it starts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.restarts = 0
        self.prompt_padding = 0
        self.ended_row_tokens = 0

    def observe_batch(self, batch: Sequence[Request], now: float) -> None:
        self.batch_size.observe(len(batch))
        for request in batch:
            self.queue_time.observe(max(0.0, now - request.arrival_time))
            self.prompt_tokens += len(request.prompt_token_ids)

    def observe_output(self, running: Running, output: RequestOutput, now: float) -> None:
        """Count an output whose tokens `running` has taken."""
        self.tokens_generated += len(output.token_ids)
        if running.first_token_time is None and output.token_ids:
            running.first_token_time = now
            self.time_to_first_token.observe(max(0.0, now - running.request.arrival_time))
        if output.finished:
            self.finished += not output.error_kind
            self.failed += bool(output.error_kind)
            self.observe_tokens(running.num_tokens, running.first_token_time, now)

    def snapshot(self, info: EngineInfo, gauges: dict[str, float]) -> EngineStats:
        stats = super().snapshot(info, gauges)
        own = {
            "lmi_generator_restarts_total": float(self.restarts),
            "lmi_padding_tokens_total": float(self.prompt_padding),
            "lmi_ended_row_tokens_total": float(self.ended_row_tokens),
        }
        return replace(stats, counters={**stats.counters, **own})
