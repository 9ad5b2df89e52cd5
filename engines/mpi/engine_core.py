"""The engine without sockets: scheduler, model and sampler. Takes requests, and returns outputs one step at a time."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from engines.core import (
    AbortReason,
    EngineInfo,
    EngineStats,
    Request,
    RequestOutput,
    SampledToken,
    SchedulerSettings,
    SettingValue,
)
from engines.errors import RequestFailed
from engines.metrics import EngineMetrics
from engines.mpi.cache.block_manager import BlockManager
from engines.mpi.runner.executor import StepExecutor, StepFailed
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.runner.prompt_logprobs import PromptTargets
from engines.mpi.runner.step_runner import PendingTokens, StepResult
from engines.mpi.scheduler.scheduler import Scheduler
from engines.mpi.scheduler.sequence import Sequence
from engines.mpi.scheduler.settings import apply_changes
from engines.mpi.scheduler.step import Step
from engines.mpi.scheduler.step_plan import PlanKind, StepPlan
from engines.mpi.trace import StepTrace
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch

logger = logging.getLogger(__name__)

_LONG_STEP_SECONDS = 0.05
"""Expected duration beyond which a step is long."""
_AUDIT_BEAT = 2


class EngineCore:
    """The step loop of rank 0. Broad excepts are only at the edge of a step."""

    def __init__(
        self,
        scheduler: Scheduler,
        blocks: BlockManager,
        executor: StepExecutor,
        sampler: Sampler,
        stopwatch: Stopwatch,
        trace: StepTrace,
        largest_step: LargestStep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """largest_step: the step that memory was measured for; settings that allow a larger one are refused.
        clock: clock of the requests' arrival times and deadlines, in seconds.
        """
        self.metrics = EngineMetrics()
        self._scheduler = scheduler
        self._blocks = blocks
        self._executor = executor
        self._sampler = sampler
        self._stopwatch = stopwatch
        self._trace = trace
        self._largest_step = largest_step
        self._clock = clock
        self._num_beats = 0
        """Heartbeats since the last step."""
        self._prefill_seconds_per_token = math.inf
        """Seconds of the last step with prefills, divided by its tokens."""
        self._in_flight: _InFlight | None = None
        """The step whose tokens are not known yet."""

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or self._in_flight is not None

    @property
    def settings(self) -> SchedulerSettings:
        return self._scheduler.settings

    def add(self, request: Request) -> None:
        """Queue a request. Raises `EngineError` when the request is refused."""
        self._scheduler.add(request)
        self._trace.record_arrival(request)

    def abort(self, request_id: str, reason: AbortReason) -> None:
        """Abort a request. Idempotent."""
        sequence = self._scheduler.abort(request_id)
        if sequence is not None:
            self.metrics.observe_abort(reason)
            if reason is AbortReason.STOP_SEQUENCE:
                self._observe_tokens(sequence, self._clock())
            self._trace.record_end(request_id, str(reason))
        self._sampler.forget(request_id)

    def configure(self, changes: Mapping[str, SettingValue]) -> SchedulerSettings:
        """Change settings from the next step on; return those in force. Raises `InvalidSettings`, changing nothing."""
        settings = apply_changes(self._scheduler.settings, changes, self._largest_step)
        if changes:
            self._scheduler.reconfigure(settings)
            logger.info("scheduler settings changed: %s", dict(changes))
        return settings

    def request_ids(self) -> list[str]:
        """Return the ids of all requests, in the order of arrival."""
        return self._scheduler.request_ids()

    def step(self, before_long_step: Callable[[], None] = lambda: None) -> list[RequestOutput]:
        """Plan and compute one step; with nothing to compute, only send a heartbeat. Returns the outputs of the
        requests.

        before_long_step: called before a step with prefills is computed that is expected to take long.
        """
        now = self._clock()
        self._stopwatch.start()
        outputs = self._scheduler.expire(now)
        for output in outputs:
            self._record_end(output)
        step = self._scheduler.schedule()
        for sequence in self._scheduler.pop_started():
            self.metrics.queue_time.observe(max(0.0, now - sequence.request.arrival_time))
            self.metrics.prompt_tokens += sequence.num_prompt_tokens
        if step is None and self._in_flight is None:
            self._executor.run_on_all_ranks(StepPlan(PlanKind.BEAT))
            self._trace.flush(now, self._state)
            self._audit_when_idle()
            self._stopwatch.reset()
            self._stopwatch.start()
            return outputs
        self._stopwatch.stop("schedule")
        self._num_beats = 0
        if step is not None and self._is_long(step):
            before_long_step()
        computed = self._collect() if step is None else self._run(step, now)
        return outputs + computed if outputs else computed

    def stop(self) -> None:
        """Stop all ranks. No request may be waiting or running. The results of a step in flight are dropped."""
        self._collect()
        self._audit("at shutdown")
        self._executor.run_on_all_ranks(StepPlan(PlanKind.STOP))
        self._trace.flush(self._clock(), self._state)
        self._trace.close()

    def stats(self, info: EngineInfo) -> EngineStats:
        """Return a snapshot of all counters and of the current state."""
        stats = self.metrics.snapshot(info, self._gauges())
        scheduler = self._scheduler
        counters = {
            "lmi_preemptions_total": float(scheduler.num_preemptions),
            "lmi_recomputed_tokens_total": float(scheduler.num_recomputed_tokens),
            "lmi_prefix_hit_tokens_total": float(scheduler.num_prefix_hit_tokens),
        }
        return dataclasses.replace(stats, counters={**stats.counters, **counters})

    def _audit_when_idle(self) -> None:
        """Audit the KV cache at the second idle heartbeat. An audit of many blocks takes a while, and a new request
        may come right after the last one has ended."""
        self._num_beats += 1
        if self._num_beats == _AUDIT_BEAT and not self._scheduler.has_work:
            self._audit("requests continue, but KV blocks have leaked")

    def _audit(self, outlook: str) -> None:
        """Log an error in the accounting of KV blocks. Called when nothing runs, so no block may be held."""
        try:
            self._scheduler.check()
            if self._blocks.num_used:
                raise RuntimeError(f"{self._blocks.num_used} blocks are in use although nothing runs")
        except Exception:  # broken accounting may also break the audit
            logger.exception("the audit of the KV cache failed (%s)", outlook)

    def _run(self, step: Step, started: float) -> list[RequestOutput]:
        """Run a step. If the device samples all its tokens, leave the step in flight and return the outputs of the
        step before."""
        rows = _rows(step)
        try:
            result = self._execute(step, rows)
        except StepFailed:
            return [*self._collect(), *self._halve(step, started)]
        if result.pending_tokens is not None and not result.pending_tokens.host_rows and not step.scored:
            self._scheduler.begin(step)
            outputs = self._collect()
            self._in_flight = _InFlight(step, result.pending_tokens, started)
            return outputs
        outputs = self._collect()
        return [*outputs, *self._complete(step, rows, result, started)]

    def _is_long(self, step: Step) -> bool:
        """Return whether a step with prefills is expected to be long. On a GPU most are short, and a message to the web
        processes before each of them would cost more than it gains."""
        seconds = step.plan.num_tokens * self._prefill_seconds_per_token
        return _has_prefills(step) and seconds > _LONG_STEP_SECONDS

    def _collect(self) -> list[RequestOutput]:
        """Finish the step in flight, if there is one."""
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is None:
            return []
        self._stopwatch.start()
        tokens = in_flight.pending_tokens.wait()
        self._stopwatch.stop("wait")
        outputs = self._scheduler.finish(in_flight.step, tokens, self._clock())
        self._stopwatch.stop("update")
        self._record_step(in_flight.step, outputs, in_flight.started)
        return outputs

    def _execute(self, step: Step, rows: list[SamplingRow]) -> StepResult:
        targets = [_targets(*scored) for scored in step.scored]
        return self._executor.run_on_all_ranks(step.plan, targets, rows)

    def _complete(
        self, step: Step, rows: list[SamplingRow], result: StepResult, started: float
    ) -> list[RequestOutput]:
        """Sample the tokens that the device does not sample, and process all tokens."""
        self._stopwatch.start()
        try:
            tokens = self._sample(rows, result)
        except Exception:  # edge of the step: an error may only affect the request that causes it
            logger.exception("sampling failed")
            return self._halve(step, started)
        self._stopwatch.stop("sample")
        outputs = self._scheduler.update(step, tokens, self._clock(), result.prompt_logprobs)
        self._stopwatch.stop("update")
        self._record_step(step, outputs, started)
        return outputs

    def _sample(self, rows: list[SamplingRow], result: StepResult) -> list[SampledToken]:
        pending, greedy = result.pending_tokens, result.greedy_tokens
        if pending is None:
            left = [row for i, row in enumerate(rows) if i not in greedy]
            sampled = [] if result.logits is None else self._sampler.sample(result.logits, left)
            if not greedy:
                return sampled
            others = iter(sampled)
            return [greedy.get(i) or next(others) for i in range(len(rows))]
        tokens = pending.wait()
        if result.logits is not None:
            host_tokens = self._sampler.sample(result.logits, [rows[i] for i in pending.host_rows])
            for i, token in zip(pending.host_rows, host_tokens, strict=True):
                tokens[i] = token
        return tokens

    def _halve(self, step: Step, started: float) -> list[RequestOutput]:
        """Halve a failed step until the request that fails is alone; only that request ends with an error. Computing
        the tokens of a sequence again does not change it."""
        # The step may have been planned with unknown tokens. By now all are known, and the devices may have sampled
        # later ones.
        step = step.with_known_tokens()
        if len(step.sequences) == 1:
            error = RequestFailed("this request failed in the engine; the server's log has the details")
            outputs = self._scheduler.fail(step.sequences, error)
            self._record_step(step, outputs, started)
            return outputs
        outputs = []
        for half in step.halves():
            rows = _rows(half)
            try:
                result = self._execute(half, rows)
            except StepFailed:
                outputs += self._halve(half, started)
            else:
                outputs += self._complete(half, rows, result, started)
        return outputs

    def _record_step(self, step: Step, outputs: list[RequestOutput], started: float) -> None:
        metrics = self.metrics
        now = self._clock()
        if _has_prefills(step):
            self._prefill_seconds_per_token = (now - started) / step.plan.num_tokens
        for sequence in self._scheduler.pop_first_token_sequences():
            metrics.time_to_first_token.observe(max(0.0, now - sequence.request.arrival_time))
        metrics.tokens_generated += sum([len(output.token_ids) for output in outputs])
        ended = ended_outputs(outputs)
        by_id = {s.request.id: s for s in step.sequences if s.done} if ended else {}
        for output in ended:
            self._record_end(output)
            self._observe_tokens(by_id[output.id], now)
        seconds = self._stopwatch.reset()
        metrics.observe_step(len(step.sequences), step.plan.num_tokens, seconds)
        self._trace.record_step(step, started, seconds, self._state)
        self._stopwatch.start()

    def _observe_tokens(self, sequence: Sequence, now: float) -> None:
        self.metrics.observe_tokens(sequence.num_output_tokens, sequence.first_token_time, now)

    def _record_end(self, output: RequestOutput) -> None:
        self._sampler.forget(output.id)
        self.metrics.observe_end(output.error_kind)
        self._trace.record_end(output.id, output.error_kind or str(output.finish_reason))

    def _gauges(self) -> dict[str, float]:
        scheduler, blocks = self._scheduler, self._blocks
        slots = blocks.num_blocks * blocks.block_size
        unfilled = blocks.num_unfilled_slots
        used = blocks.num_used * blocks.block_size
        return {
            "lmi_requests_running": float(scheduler.num_running),
            "lmi_requests_waiting": float(scheduler.num_waiting),
            "lmi_queued_tokens": float(scheduler.num_queued_tokens),
            "lmi_kv_blocks_total": float(blocks.num_blocks),
            "lmi_kv_blocks_free": float(blocks.num_free),
            "lmi_kv_blocks_cached": float(blocks.num_cached),
            "lmi_kv_slots_total": float(slots),
            "lmi_kv_slots_unfilled": float(unfilled),
            "lmi_kv_use": used / slots if slots else 0.0,
            "lmi_kv_waste": unfilled / used if used else 0.0,
        }

    def _state(self) -> dict[str, int]:
        scheduler, blocks = self._scheduler, self._blocks
        return {
            "running": scheduler.num_running,
            "waiting": scheduler.num_waiting,
            "blocks_used": blocks.num_used,
            "blocks_cached": blocks.num_cached,
            "preemptions": scheduler.num_preemptions,
        }


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step in flight."""

    step: Step
    pending_tokens: PendingTokens
    started: float


def _has_prefills(step: Step) -> bool:
    return step.num_decodes < len(step.sequences)


def _rows(step: Step) -> list[SamplingRow]:
    return [sequence.sampling_row for sequence in step.sampled]


def ended_outputs(outputs: Iterable[RequestOutput]) -> list[RequestOutput]:
    """Return the outputs that are the last of their requests."""
    # Same as `finished`, without hundreds of calls in every step.
    return [output for output in outputs if output.finish_reason is not None or output.error_kind]


def _targets(sequence: Sequence, first: int, last: int) -> PromptTargets:
    """Return the prompt tokens that follow those of the chunk [first, last)."""
    sampling = sequence.request.sampling
    return PromptTargets(
        sequence.request.prompt_token_ids[first + 1 : last + 1], sampling.prompt_logprobs or 0
    )
