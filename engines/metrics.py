"""The engine's counters, as plain numbers. `lmi_server/metrics.py` renders a snapshot for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from engines.core import AbortReason, EngineInfo, EngineStats, HistogramData

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 240.0, 480.0),
)
_BATCH = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_TOKENS = (*_BATCH, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)
_SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
_PARTS = (*_SHORT, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_MODEL_PARTS = ("attention", "model", "sample", "wait")
"""Parts of a step that are not overhead."""


class Histogram:
    """Counts of observations in buckets with upper bounds."""

    def __init__(self, name: str, bounds: tuple[float, ...], labels: Mapping[str, str] | None = None) -> None:
        self._name = name
        self._bounds = bounds
        self._labels = dict(labels or {})
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramData:
        return HistogramData(self._name, self._bounds, tuple(self._counts), self._sum, dict(self._labels))


class EngineMetrics:
    """All counters of one engine. One thread."""

    def __init__(self) -> None:
        self.tokens_generated = 0
        self.prompt_tokens = 0
        self.steps = 0
        self.aborted = 0
        self.failed = 0
        self.finished = 0
        self.batch_size = Histogram("lmi_batch_size", _BATCH)
        self.time_to_first_token = Histogram("lmi_time_to_first_token_seconds", _SECONDS)
        self.time_per_output_token = Histogram("lmi_time_per_output_token_seconds", _SECONDS)
        self.queue_time = Histogram("lmi_queue_seconds", _SECONDS)
        self.step_tokens = Histogram("lmi_step_tokens", _TOKENS)
        self.step_overhead = Histogram("lmi_step_overhead_seconds", _SHORT)
        self._step_parts: dict[str, Histogram] = {}

    def observe_abort(self, reason: AbortReason) -> None:
        """Count a request that the web process ends. One that reached a stop string counts as finished, and one that
        timed out as failed, as if the engine had ended it."""
        if reason is AbortReason.STOP_SEQUENCE:
            self.finished += 1
        elif reason is AbortReason.TIMEOUT:
            self.failed += 1
        else:
            self.aborted += 1

    def observe_end(self, error_kind: str) -> None:
        """Count a request that ends by itself. error_kind: empty without an error."""
        self.finished += not error_kind
        self.failed += bool(error_kind)

    def observe_tokens(self, num_tokens: int, first_token_time: float | None, now: float) -> None:
        """Observe the time per output token (TPOT, without the first token) of a request that ends now with
        `num_tokens` tokens."""
        if num_tokens > 1 and first_token_time is not None:
            self.time_per_output_token.observe((now - first_token_time) / (num_tokens - 1))

    def observe_step(self, num_sequences: int, num_tokens: int, seconds_by_part: Mapping[str, float]) -> None:
        """Observe one step: its sequences, its tokens, and its time by part."""
        self.steps += 1
        self.batch_size.observe(num_sequences)
        self.step_tokens.observe(num_tokens)
        self.step_overhead.observe(
            sum(seconds for part, seconds in seconds_by_part.items() if part not in _MODEL_PARTS)
        )
        for part, seconds in seconds_by_part.items():
            histogram = self._step_parts.get(part)
            if histogram is None:
                histogram = self._step_parts[part] = Histogram("lmi_step_seconds", _PARTS, {"part": part})
            histogram.observe(seconds)

    def snapshot(self, info: EngineInfo, gauges: dict[str, float]) -> EngineStats:
        histograms = (
            self.batch_size,
            self.time_to_first_token,
            self.time_per_output_token,
            self.queue_time,
            self.step_tokens,
            self.step_overhead,
            *self._step_parts.values(),
        )
        return EngineStats(info, gauges, self._counters(), tuple(each.snapshot() for each in histograms))

    def _counters(self) -> dict[str, float]:
        return {
            "lmi_tokens_generated_total": self.tokens_generated,
            "lmi_prompt_tokens_total": self.prompt_tokens,
            "lmi_steps_total": self.steps,
            "lmi_requests_finished_total": self.finished,
            "lmi_requests_aborted_total": self.aborted,
            "lmi_requests_failed_total": self.failed,
        }
