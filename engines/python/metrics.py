"""Metrics of the dispatchers."""

from __future__ import annotations

from collections.abc import Sequence

from engines.core import Request, RequestOutput
from engines.invocations import Invocation
from engines.metrics import EngineMetrics
from engines.python.running import RunningRequest


class DispatcherMetrics(EngineMetrics):
    """The metrics of every engine, and the restarts of a dispatcher's child processes. Single-threaded.

    `lmi_batch_size` is observed once for each batch, when it starts.
    """

    def __init__(self, restarts_name: str) -> None:
        """restarts_name: name of the counter of restarts."""
        super().__init__()
        self.restarts = 0
        self._restarts_name = restarts_name

    def observe_batch(self, batch: Sequence[Request] | Sequence[Invocation], now: float) -> None:
        self.batch_size.observe(len(batch))
        for request in batch:
            self.queue_time.observe(max(0.0, now - request.arrival_time))

    def _counters(self) -> dict[str, float]:
        return super()._counters() | {self._restarts_name: self.restarts}


class BatchMetrics(DispatcherMetrics):
    """Metrics of batched text generation."""

    def __init__(self) -> None:
        super().__init__("lmi_generator_restarts_total")
        self.prompt_padding = 0
        self.ended_row_tokens = 0

    def observe_prompts(self, batch: Sequence[Request]) -> None:
        self.prompt_tokens += sum(len(request.prompt_token_ids) for request in batch)

    def observe_output(self, running: RunningRequest, output: RequestOutput, now: float) -> None:
        """Count an output whose tokens have already been added to `running`."""
        self.tokens_generated += len(output.token_ids)
        if running.first_token_time is None and output.token_ids:
            running.first_token_time = now
            self.time_to_first_token.observe(max(0.0, now - running.request.arrival_time))
        if output.finished:
            self.observe_end(output.error_kind)
            self.observe_tokens(running.num_tokens, running.first_token_time, now)

    def _counters(self) -> dict[str, float]:
        return super()._counters() | {
            "lmi_padding_tokens_total": self.prompt_padding,
            "lmi_ended_row_tokens_total": self.ended_row_tokens,
        }
