"""The dispatcher's loop: receive requests, run them in batches in the generating process, forward its outputs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from engines.config import PythonEngineConfig
from engines.core import AbortReason, EngineInfo, Request, RequestOutput
from engines.engine_socket import EngineSocket
from engines.errors import InvalidRequest, RequestFailed, Unavailable
from engines.health import EngineState, StatusBoard
from engines.python.batcher import DynamicBatcher
from engines.python.crashing_requests import MAX_REQUEST_CRASHES, CrashingRequests
from engines.python.generating_process import GeneratingProcess
from engines.python.messages import DISPATCHER, BatchDone, CallStarted, CannotLoad, Ready, StepDone
from engines.python.metrics import BatchMetrics
from engines.python.request_loop import MAX_CRASHES, REACTION_SECONDS, EngineFailed, RequestLoop
from engines.python.running import RunningRequest, batch_timed_out
from engines.python.worker_process import WorkerProcessEnded
from engines.wire import Outputs, Submit, ToEngine

logger = logging.getLogger(__name__)


class Dispatch(RequestLoop[Request, RequestOutput]):
    """Runs one batch at a time. Single-threaded. `clock` is `time.monotonic` except in tests."""

    _metrics: BatchMetrics
    _output_type = RequestOutput
    _message_type = Outputs

    def __init__(
        self,
        config: PythonEngineConfig,
        info: EngineInfo,
        batcher: DynamicBatcher[Request],
        generator: GeneratingProcess,
        socket: EngineSocket,
        board: StatusBoard,
        load_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """generator: is ready already; load_seconds: duration of its start, from which a restart's limit follows."""
        super().__init__(info, batcher, BatchMetrics(), socket, board, clock)
        self._config = config
        self._generator = generator
        self._reload_timeout = 60.0 + 5 * load_seconds
        self._running: dict[str, RunningRequest] = {}
        self._in_call: list[str] = []
        """Requests of the running call of `generate`: the whole batch or a part of it."""
        self._suspects: deque[RunningRequest] = deque()
        """Requests that ran when the generating process crashed. Each is retried alone, before all others."""
        self._crashing_requests = CrashingRequests()
        self._stuck_at: float | None = None
        """Time at which the generating process counts as stuck, in a batch or while it loads the model."""
        self._loading = False
        self._crashes = 0
        """Number of crashes while loading or idle since the latest batch."""

    def serve(self) -> None:
        """Serve requests until a `Drain` is complete.

        Raises:
            EngineFailed: the generating process crashes repeatedly.
        """
        self._board.beat(DISPATCHER)
        self._batcher.set_free(self._clock())
        self._set_state(EngineState.READY)
        self._socket.watch(self._generator.fileno())
        while not self._is_drained():
            for client, message in self._socket.receive(self._wait_seconds([self._stuck_at])):
                self._handle(client, message)
            self._read_generator()
            if self._was_paused() and self._stuck_at is not None:
                self._stuck_at = max(self._stuck_at, self._clock() + REACTION_SECONDS)
            self._kill_stuck_generator()
            self._send_all([], [])
            self._start_batch()
            self._board.beat(DISPATCHER)
        self._fail_unfinished()
        self._socket.unwatch(self._generator.fileno())

    # Messages from web processes and the supervisor

    def _handle(self, client: bytes, message: ToEngine) -> None:
        if isinstance(message, Submit):
            for request in message.whole():
                self._submit(client, request, len(message.requests))
        else:
            super()._handle(client, message)

    def _check(self, request: Request) -> None:
        if self._loading:
            raise Unavailable("the generating process ended and is being restarted")
        if request in self._crashing_requests:
            raise RequestFailed(
                "an identical request crashed the generating process before; it is not run again"
            )
        prompt, new = len(request.prompt_token_ids), request.sampling.max_new_tokens
        if prompt < 1 or new < 1:
            raise InvalidRequest("a request needs at least one prompt token and max_new_tokens of at least 1")
        limit = self._config.model.max_model_len
        if prompt + new > limit:
            raise InvalidRequest(
                f"the prompt's {prompt} tokens and max_new_tokens={new} are {prompt + new} in total, more than the "
                f"limit of {limit} tokens"
            )

    def _forget(self, request_id: str, reason: AbortReason) -> None:
        if running := self._running.pop(request_id, None):
            self._generator.forget(request_id)
            if reason is AbortReason.STOP_SEQUENCE:
                self._metrics.observe_tokens(running.num_tokens, running.first_token_time, self._clock())
                self._crashing_requests.discard(running.request)
        elif not self._batcher.abort(request_id):
            self._suspects = deque(each for each in self._suspects if each.request.id != request_id)

    # The generating process: messages, crashes and restarts

    def _read_generator(self) -> None:
        try:
            for message in self._generator.receive(0.0):
                match message:
                    case CallStarted(request_ids):
                        self._start_call(request_ids)
                    case StepDone(outputs):
                        self._metrics.steps += 1
                        self._send(outputs)
                    case BatchDone(waste):
                        self._metrics.prompt_padding += waste.prompt_padding
                        self._metrics.ended_row_tokens += waste.ended_row_tokens
                        self._crashes = 0
                        self._stuck_at = None
                        self._batcher.set_free(self._clock())
                    case Ready():
                        logger.info("the generating process is ready again")
                        self._loading = False
                        self._stuck_at = None
                        self._batcher.set_free(self._clock())
                        self._set_state(EngineState.READY)
                    case CannotLoad(cause):
                        raise EngineFailed(f"the generating process could not be restarted: {cause}")
        except WorkerProcessEnded as end:
            self._restart(str(end))

    def _kill_stuck_generator(self) -> None:
        """Kill and restart a generating process that has not reacted in time."""
        if self._stuck_at is None or self._clock() < self._stuck_at:
            return
        self._generator.kill()
        if self._loading:
            self._restart(f"it was not ready after {self._reload_timeout:.0f} s")
            return
        limit = self._config.batching.batch_timeout
        timed_out = [
            (name, batch_timed_out(limit, each.num_tokens))
            for name, each in self._running.items()
            if name in self._in_call
        ]
        self._send([RequestOutput.failed(request_id, error) for request_id, error in timed_out])
        self._restart(f"it did not react within {REACTION_SECONDS:g} s after the batch had timed out")

    def _restart(self, how: str) -> None:
        """Restart the generating process and retry the requests of its batch, except one that is to blame.

        Raises:
            EngineFailed: the process has crashed too often while loading or idle.
        """
        logger.error("the generating process ended: %s; its batch had %d requests", how, len(self._running))
        had_batch = self._stuck_at is not None and not self._loading
        self._crashes = 0 if had_batch else self._crashes + 1
        # Set the state before any error is sent: a client that retries at once must not find the server ready.
        self._set_state(EngineState.STARTING, f"the generating process is being restarted: {how}")
        # A request that left or finished was in the call too: its row may have been computed to the end.
        was_alone = len(self._in_call) == 1
        crashing = [
            each
            for name, each in self._running.items()
            if name in self._in_call and self._crashing_requests.add(each.request, was_alone)
        ]
        for each in crashing:
            logger.error(
                "request %s was the only one when the generating process ended; it is not run again",
                each.request.id,
            )
        error = RequestFailed(
            f"the generating process ended {MAX_REQUEST_CRASHES} times while running this request or an identical one,"
            " the last time with no other request; it is not run again"
        )
        self._send([RequestOutput.failed(each.request.id, error) for each in crashing])
        self._suspects.extend(self._running.values())
        self._running = {}
        if self._crashes >= MAX_CRASHES:
            raise EngineFailed(
                f"the generating process ended {self._crashes} times, not caused by a request; the last time {how}"
            )
        self._batcher.set_busy()
        self._restart_process(self._generator)
        self._loading = True
        self._stuck_at = self._clock() + self._reload_timeout

    # Batches and outputs

    def _start_batch(self) -> None:
        now = self._clock()
        if self._suspects and self._batcher.is_free:
            self._batcher.set_busy()
            suspect = self._suspects.popleft()
            suspect.delivered.restart()
            self._metrics.batch_size.observe(1)
            self._run([suspect])
        elif (batch := self._batcher.pop_batch(now)) is not None:
            self._metrics.observe_batch(batch, now)
            self._metrics.observe_prompts(batch)
            self._run([RunningRequest(request) for request in batch])

    def _run(self, batch: list[RunningRequest]) -> None:
        self._running = {each.request.id: each for each in batch}
        self._start_call(list(self._running))
        self._generator.run([each.request for each in batch])

    def _start_call(self, request_ids: list[str]) -> None:
        self._in_call = request_ids
        self._stuck_at = self._clock() + self._config.batching.batch_timeout + REACTION_SECONDS

    def _send(self, outputs: list[RequestOutput]) -> None:
        """Count and send outputs. Outputs of aborted requests are dropped."""
        now = self._clock()
        sent, finished = [], []
        for output in outputs:
            running = self._running.get(output.id)
            if running is None:
                continue
            try:
                if not running.delivered.record(output.token_ids):
                    continue
            except RequestFailed as error:
                self._generator.forget(output.id)
                output = RequestOutput.failed(output.id, error)
            self._metrics.observe_output(running, output, now)
            sent.append(output)
            if output.finished:
                if not output.error_kind:
                    self._crashing_requests.discard(running.request)
                del self._running[output.id]
                finished.append(output.id)
        self._send_all(sent, finished)

    def _gauges(self) -> dict[str, float]:
        return {
            "lmi_requests_running": float(len(self._running)),
            "lmi_requests_waiting": float(self._batcher.num_waiting + len(self._suspects)),
        }
