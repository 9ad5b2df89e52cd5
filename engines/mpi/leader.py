"""Rank 0's step loop: receive, schedule, compute, sample, send."""

from __future__ import annotations

import logging
import time
from collections import defaultdict

from engines.core import EngineInfo, Request, RequestOutput
from engines.errors import EngineError, RequestFailed, Unavailable
from engines.front import Front
from engines.health import IDLE_BEAT_SECONDS, EngineState, StatusBoard
from engines.metrics import EngineMetrics
from engines.mpi.block_manager import BlockManager
from engines.mpi.executor import StepExecutor, StepFailed
from engines.mpi.scheduler import SampledToken, Scheduler, Step
from engines.mpi.step_plan import PlanKind, StepPlan
from engines.sampling.batch import SamplingRow
from engines.sampling.sampler import Sampler
from engines.stopwatch import Stopwatch
from engines.wire import Abort, Drain, GetStats, Stats, Submit, ToEngine

logger = logging.getLogger(__name__)


class Leader:
    """Everything that only rank 0 does. Broad excepts stand at the step's edge alone."""

    def __init__(
        self,
        scheduler: Scheduler,
        blocks: BlockManager,
        executor: StepExecutor,
        sampler: Sampler,
        board: StatusBoard,
        stopwatch: Stopwatch,
    ) -> None:
        self._scheduler = scheduler
        self._blocks = blocks
        self._executor = executor
        self._sampler = sampler
        self._board = board
        self._stopwatch = stopwatch
        self._metrics = EngineMetrics()
        self._clients: dict[str, bytes] = {}
        self._deadline: float | None = None

    def warm_up(self, request: Request) -> None:
        """Run one request to its end, so that 'ready' means that the loaded model has computed.

        Raises:
            RequestFailed: it does not compute.
        """
        self._scheduler.add(request)
        while self._scheduler.has_work:
            for output in self._step():
                if output.error_kind:
                    raise RequestFailed(f"the warm-up failed: {output.error_message}")
        self._metrics = EngineMetrics()

    def serve(self, front: Front, info: EngineInfo) -> None:
        """Loop until a `Drain` has been carried out."""
        while self._deadline is None or (self._scheduler.has_work and time.monotonic() < self._deadline):
            timeout = 0.0 if self._scheduler.has_work else front.wait_seconds(IDLE_BEAT_SECONDS)
            for client, message in front.receive(timeout):
                self._handle(front, info, client, message)
            outputs = self._step()
            self._send(front, outputs)
            self._stopwatch.stop("send")
            if outputs:
                logger.debug("step: %d outputs", len(outputs))
        self._end(front)

    def _handle(self, front: Front, info: EngineInfo, client: bytes, message: ToEngine) -> None:
        match message:
            case Submit(request):
                self._submit(front, client, request)
            case Abort(request_id):
                if self._clients.get(request_id) == client:
                    self._abort(request_id)
            case GetStats(token):
                front.send(client, Stats(token, self._metrics.snapshot(info, self._gauges())))
            case Drain(seconds):
                logger.info("draining: at most %.0f s for %d requests", seconds, len(self._clients))
                self._board.set_state(EngineState.DRAINING)
                self._deadline = time.monotonic() + seconds

    def _submit(self, front: Front, client: bytes, request: Request) -> None:
        try:
            if self._deadline is not None:
                raise Unavailable("the server is shutting down")
            self._scheduler.add(request)
        except EngineError as error:
            refusal = RequestOutput(request.id, error_kind=error.kind, error_message=str(error))
            front.send_outputs(client, [refusal])
            return
        self._clients[request.id] = client

    def _abort(self, request_id: str) -> None:
        if self._scheduler.abort(request_id):
            self._metrics.aborted += 1
        self._sampler.forget(request_id)
        self._clients.pop(request_id, None)

    def _step(self) -> list[RequestOutput]:
        """Plan and compute one step; without work, only beat."""
        self._stopwatch.start()
        step = self._scheduler.schedule(time.monotonic())
        if step is None:
            self._executor.lead(StepPlan(PlanKind.BEAT))
            self._stopwatch.reset()
            self._stopwatch.start()
            return []
        self._stopwatch.stop("schedule")
        outputs = self._compute(step)
        self._count(step, outputs)
        return outputs

    def _compute(self, step: Step) -> list[RequestOutput]:
        """Compute a step. One that fails is halved until the culprit is alone, and only that one ends with an error:
        plans are complete in themselves, and computing a sequence again does not change it.
        """
        try:
            tokens = self._compute_tokens(step)
        except Exception as error:  # the step's edge: whatever a request can break, it breaks for itself
            if not isinstance(error, StepFailed):
                logger.exception("sampling failed")
            if len(step.sequences) == 1:
                return self._scheduler.fail(
                    step.sequences, RequestFailed("this request failed in the engine")
                )
            return [output for half in step.halves() for output in self._compute(half)]
        self._stopwatch.start()
        outputs = self._scheduler.update(step, tokens, time.monotonic())
        self._stopwatch.stop("update")
        return outputs

    def _compute_tokens(self, step: Step) -> list[SampledToken]:
        logits = self._executor.lead(step.plan)
        if logits is None:
            return []
        self._stopwatch.start()
        rows = [SamplingRow(s.id, s.request.sampling, s.token_ids) for s in step.sampled]
        sampled = self._sampler.sample(logits, rows)
        self._stopwatch.stop("sample")
        return [SampledToken(s.token_id, s.logprob, s.finite) for s in sampled]

    def _count(self, step: Step, outputs: list[RequestOutput]) -> None:
        metrics = self._metrics
        now = time.monotonic()
        for sequence, planned in zip(step.sequences, step.plan.sequences, strict=True):
            if planned.start == 0 and sequence.scheduled_time is not None:
                metrics.queue_time.observe(max(0.0, sequence.scheduled_time - sequence.request.arrival_time))
                metrics.prompt_tokens += sequence.num_prompt_tokens
        by_id = {sequence.id: sequence for sequence in step.sequences}
        for output in outputs:
            sequence = by_id[output.id]
            metrics.tokens_generated += len(output.token_ids)
            if sequence.num_output_tokens == 1 and output.token_ids:
                metrics.time_to_first_token.observe(max(0.0, now - sequence.request.arrival_time))
            if output.finished:
                self._sampler.forget(output.id)
                metrics.finished += not output.error_kind
                metrics.failed += bool(output.error_kind)
                later = sequence.num_output_tokens - 1
                if later > 0 and sequence.first_token_time is not None:
                    metrics.time_per_output_token.observe((now - sequence.first_token_time) / later)
        metrics.observe_step(len(step.sequences), self._stopwatch.reset())
        self._stopwatch.start()

    def _send(self, front: Front, outputs: list[RequestOutput]) -> None:
        by_client: defaultdict[bytes, list[RequestOutput]] = defaultdict(list)
        for output in outputs:
            client = self._clients[output.id]
            by_client[client].append(output)
            if output.finished:
                del self._clients[output.id]
        gone = [client for client, batch in by_client.items() if not front.send_outputs(client, batch)]
        for client in {*gone, *front.flush()}:
            orphans = [request_id for request_id, owner in self._clients.items() if owner == client]
            logger.warning("a web process is gone; %d requests are dropped", len(orphans))
            for request_id in orphans:
                self._abort(request_id)

    def _end(self, front: Front) -> None:
        """Tell those that could not be finished, then stop the other ranks."""
        error = Unavailable("the server is shutting down and could not finish this request in time")
        rest = self._scheduler.request_ids()
        self._send(front, [RequestOutput(i, error_kind=error.kind, error_message=str(error)) for i in rest])
        for request_id in rest:
            self._scheduler.abort(request_id)
        logger.info("drained: %d requests were told that they could not be finished", len(rest))
        self._executor.lead(StepPlan(PlanKind.STOP))
        front.close()

    def _gauges(self) -> dict[str, float]:
        slots = self._blocks.num_blocks * self._blocks.block_size
        return {
            "lmi_requests_running": float(self._scheduler.num_running),
            "lmi_requests_waiting": float(self._scheduler.num_waiting),
            "lmi_kv_blocks_total": float(self._blocks.num_blocks),
            "lmi_kv_blocks_free": float(self._blocks.num_free),
            "lmi_kv_blocks_cached": 0.0,
            "lmi_kv_slots_total": float(slots),
            "lmi_kv_slots_unfilled": float(self._blocks.num_unfilled_slots),
        }
