"""The dispatcher's loop for a handler: receive requests, run them in workers, forward their outputs.

If a worker crashes or hangs with several requests, or a call with several requests fails, each request is retried
alone, so that only the one to blame fails.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from engines.config import HandlerEngineConfig
from engines.core import AbortReason, EngineInfo
from engines.engine_socket import EngineSocket
from engines.errors import DeadlineExceeded, EngineError, RequestFailed
from engines.health import EngineState, StatusBoard
from engines.invocations import Invocation, InvocationOutput
from engines.python.batcher import DynamicBatcher
from engines.python.handlers.messages import Answered, CallDone
from engines.python.handlers.slot import HandlerProcess, RunningInvocation, Slot
from engines.python.messages import DISPATCHER, CannotLoad, Ready
from engines.python.metrics import DispatcherMetrics
from engines.python.request_loop import MAX_CRASHES, REACTION_SECONDS, EngineFailed, RequestLoop
from engines.python.worker_process import WorkerProcessEnded
from engines.wire import InvocationOutputs, Invoke, ToEngine

logger = logging.getLogger(__name__)

GROW_AGAIN_SECONDS = 60.0
"""Seconds before another worker is started, after one could not start, or one beyond `min_workers` could not load."""
_CANNOT_START = (OSError, RuntimeError)
"""Errors of the start of a process: there is no memory, process, file or thread left."""


class HandlerDispatch(RequestLoop[Invocation, InvocationOutput]):
    """Runs one call at a time in each worker, or many with an asynchronous handler. Single-threaded.

    `clock` is `time.monotonic` except in tests.
    """

    _output_type = InvocationOutput
    _message_type = InvocationOutputs

    def __init__(
        self,
        config: HandlerEngineConfig,
        info: EngineInfo,
        start_worker: Callable[[int], HandlerProcess],
        socket: EngineSocket,
        board: StatusBoard,
        clock: Callable[[], float],
    ) -> None:
        """start_worker: starts the worker with a given number."""
        metrics = DispatcherMetrics("lmi_worker_restarts_total")
        super().__init__(info, DynamicBatcher(config.batching), metrics, socket, board, clock)
        self._config = config
        self._start_worker = start_worker
        self._slots: list[Slot] = []
        self._to_retry_alone: deque[RunningInvocation] = deque()
        """Requests of failed calls. Each is retried alone, before all others."""
        self._grow_at = 0.0
        """Earliest time at which more workers may be started."""
        self._was_ready = False

    def serve(self) -> None:
        """Start the workers, and serve requests until a `Drain` is complete.

        Raises:
            EngineFailed: the handler cannot be loaded, or workers crash repeatedly.
        """
        for _ in range(self._config.handler.min_workers):
            self._add_slot()
        try:
            while not self._is_drained():
                timeout = self._wait_seconds(slot.stuck_at for slot in self._slots)
                for client, message in self._socket.receive(timeout):
                    self._handle(client, message)
                for slot in list(self._slots):
                    self._read(slot)
                if self._was_paused():
                    for slot in self._slots:
                        slot.postpone(self._clock() + REACTION_SECONDS)
                for slot in list(self._slots):
                    self._kill_if_stuck(slot)
                self._send_all([], [])
                self._start_calls()
                self._scale_workers()
                self._board.beat(DISPATCHER)
            self._fail_unfinished()
            for slot in self._slots:
                self._socket.unwatch(slot.process.fileno())
        finally:
            for slot in self._slots:
                slot.process.close()

    # Messages from web processes and the supervisor

    def _handle(self, client: bytes, message: ToEngine) -> None:
        if isinstance(message, Invoke):
            num_bytes = sum(len(data) for _, data in message.invocation.content)
            self._submit(client, message.invocation, num_bytes=num_bytes)
        else:
            super()._handle(client, message)

    def _check(self, request: Invocation) -> None:
        """Accept every request. Requests wait while workers are started."""

    def _is_finished(self) -> bool:
        """Also wait for calls without a client: a handler may still be cleaning up."""
        return super()._is_finished() and not any(slot.calls for slot in self._slots)

    def _forget(self, request_id: str, reason: AbortReason) -> None:
        for slot in self._slots:
            if slot.running.pop(request_id, None) is not None:
                slot.process.forget(request_id)
                if slot.accepts_concurrent_calls:
                    slot.calls[request_id] = self._clock() + REACTION_SECONDS
                return
        if not self._batcher.abort(request_id):
            self._to_retry_alone = deque(
                each for each in self._to_retry_alone if each.invocation.id != request_id
            )

    # Workers: messages, crashes and restarts

    def _read(self, slot: Slot) -> None:
        try:
            for message in slot.process.receive(0.0):
                match message:
                    case Answered(outputs):
                        self._send(slot, outputs)
                    case CallDone(request_ids, failed):
                        self._end_call(slot, request_ids, failed)
                    case Ready() as ready:
                        self._set_ready(slot, ready)
                    case CannotLoad(cause):
                        cause = f"{self._config.handler.file}: {cause}"
                        if not self._was_ready:
                            raise EngineFailed(cause)
                        slot.process.kill()
                        self._handle_worker_exit(slot, RequestFailed(cause))
                        return
        except WorkerProcessEnded as end:
            self._handle_worker_exit(slot, RequestFailed(f"the handler's process ended: {end}"))

    def _kill_if_stuck(self, slot: Slot) -> None:
        """Cancel the late calls of an asynchronous handler. Otherwise kill and restart a worker that is late."""
        now = self._clock()
        if slot.stuck_at is None or now < slot.stuck_at:
            return
        limit, option = self._config.batching.batch_timeout, "option.predict_timeout"
        if slot.loading:
            limit, option = self._config.handler.loading_timeout, "option.model_loading_timeout"
        error = DeadlineExceeded(f"the handler took longer than {limit:g} s ({option})")
        timed_out = (
            [name for name in slot.running if slot.calls[name] <= now]
            if slot.accepts_concurrent_calls
            else []
        )
        if not timed_out:
            if slot.calls and slot.accepts_concurrent_calls:
                error = DeadlineExceeded(
                    f"the handler did not stop within {REACTION_SECONDS:g} s of a cancellation"
                )
            slot.process.kill()
            self._handle_worker_exit(slot, error)
            return
        for name in timed_out:
            slot.calls[name] = now + REACTION_SECONDS
            slot.process.forget(name)
        self._send(slot, [InvocationOutput.failed(name, error) for name in timed_out])

    def _handle_worker_exit(self, slot: Slot, error: EngineError) -> None:
        """Restart a worker whose process is gone. A request that was alone in the worker gets the error.

        A worker beyond `min_workers` that could not load the handler, or one that cannot be restarted, is removed.

        Raises:
            EngineFailed: a worker crashes at start-up, or repeatedly with no request to blame.
        """
        logger.error("worker %d ended with %d requests: %s", slot.number, len(slot.running), error)
        if slot.loading and len(self._slots) > self._config.handler.min_workers:
            self._grow_at = self._clock() + GROW_AGAIN_SECONDS
            self._drop_slot(slot)
            return
        if slot.calls:
            slot.crashes = 0
        else:
            slot.crashes += 1
            if not self._was_ready or slot.crashes >= MAX_CRASHES:
                what = "loading the handler" if slot.loading else "idle"
                raise EngineFailed(f"worker {slot.number} ended while {what}: {error}")
        was_alone = len(slot.calls) == 1
        slot.reset(self._clock() + self._config.handler.loading_timeout)
        # Set the state before any error is sent: a client that retries at once must not find the server ready.
        self._report_state(f"a worker is being restarted: {error}")
        try:
            self._restart_process(slot.process)
        except _CANNOT_START as cause:
            self._slots.remove(slot)
            self._grow_later(cause)
        if was_alone:
            self._send(slot, [InvocationOutput.failed(name, error) for name in slot.running])
        self._retry_alone(slot, list(slot.running))

    def _end_call(self, slot: Slot, request_ids: list[str], failed: bool) -> None:
        unanswered = [name for name in request_ids if name in slot.running]
        if failed:
            self._retry_alone(slot, unanswered)
        else:
            error = RequestFailed("the handler returned without a response")
            self._send(slot, [InvocationOutput.failed(name, error) for name in unanswered])
        for name in request_ids:
            slot.calls.pop(name, None)
        slot.runs_alone = False
        slot.crashes = 0
        slot.idle_since = self._clock()

    def _retry_alone(self, slot: Slot, request_ids: list[str]) -> None:
        """Queue the requests of a failed call to run alone. Requests whose response has begun fail instead."""
        answering = [name for name in request_ids if slot.running[name].answering]
        self._to_retry_alone.extend(slot.running.pop(name) for name in request_ids if name not in answering)
        error = RequestFailed("the handler's process ended while sending the response")
        self._send(slot, [InvocationOutput.failed(name, error) for name in answering])

    def _set_ready(self, slot: Slot, ready: Ready) -> None:
        logger.info("worker %d is ready", slot.number)
        self._info = replace(self._info, device=ready.device, load_seconds=ready.load_seconds)
        if not ready.takes_batches:
            # Requests in one batch would share a time limit and a worker, although each is a call of its own.
            self._batcher.set_batch_size(1)
            self._info = replace(self._info, max_num_seqs=1)
        slot.accepts_concurrent_calls = ready.accepts_concurrent_calls
        slot.loading = False
        slot.idle_since = self._clock()
        if self._was_ready or not any(one.loading for one in self._slots):
            self._was_ready = True
            self._report_state()

    def _report_state(self, reason: str = "") -> None:
        """Report the engine as ready if any worker has loaded the handler."""
        ready = not all(slot.loading for slot in self._slots)
        self._set_state(EngineState.READY if ready else EngineState.STARTING, "" if ready else reason)

    def _add_slot(self, load_deadline: float | None = None) -> None:
        number = min(set(range(len(self._slots) + 1)) - {slot.number for slot in self._slots})
        slot = Slot(self._start_worker(number), number, load_deadline=load_deadline)
        self._slots.append(slot)
        self._socket.watch(slot.process.fileno())

    def _drop_slot(self, slot: Slot) -> None:
        self._socket.unwatch(slot.process.fileno())
        slot.process.close()
        self._slots.remove(slot)

    def _scale_workers(self) -> None:
        """Start another worker if one is missing or requests wait for one. Stop workers that are idle for too long."""
        settings = self._config.handler
        now = self._clock()
        has_waiting = bool(self._batcher.num_waiting or self._to_retry_alone)
        is_full = all(slot.calls and not slot.room for slot in self._slots)
        if len(self._slots) < settings.min_workers or (has_waiting and is_full):
            if len(self._slots) < settings.max_workers and now >= self._grow_at:
                try:
                    self._add_slot(now + settings.loading_timeout)
                except _CANNOT_START as cause:
                    self._grow_later(cause)
            return
        for slot in self._slots[settings.min_workers :]:
            num_loaded = sum(not each.loading for each in self._slots)
            idle_too_long = now - slot.idle_since >= settings.max_idle_seconds
            if slot.idle and idle_too_long and num_loaded > settings.min_workers:
                self._drop_slot(slot)

    def _grow_later(self, cause: Exception) -> None:
        logger.warning("a worker cannot be started now: %s", cause)
        self._grow_at = self._clock() + GROW_AGAIN_SECONDS

    # Calls and outputs

    def _start_calls(self) -> None:
        now = self._clock()
        while (slot := self._next_slot()) is not None:
            self._batcher.set_free(now, sum(each.room for each in self._slots))
            if self._to_retry_alone and slot.idle:
                self._run(slot, [self._to_retry_alone.popleft()], now)
                slot.runs_alone = True
            elif (batch := self._batcher.pop_batch(now)) is not None:
                self._metrics.observe_batch(batch, now)
                self._run(slot, [RunningInvocation(invocation) for invocation in batch], now)
            else:
                return
        self._batcher.set_busy()

    def _next_slot(self) -> Slot | None:
        """Return the slot with the fewest calls that can take another one.

        While a request waits to be retried alone and no slot is about to take it, the slot with the fewest calls gets
        no new ones, so that it becomes idle.
        """
        free = sorted((slot for slot in self._slots if slot.room), key=lambda slot: len(slot.calls))
        if self._to_retry_alone and not any(
            slot.loading or slot.idle or slot.runs_alone for slot in self._slots
        ):
            free = free[1:]
        return free[0] if free else None

    def _run(self, slot: Slot, batch: list[RunningInvocation], now: float) -> None:
        by_id = {each.invocation.id: each for each in batch}
        slot.calls |= dict.fromkeys(by_id, now + self._config.batching.batch_timeout)
        slot.running |= by_id
        slot.process.run([each.invocation for each in batch])

    def _send(self, slot: Slot, outputs: list[InvocationOutput]) -> None:
        """Count and send outputs. Outputs of aborted requests are dropped."""
        sent, finished = [], []
        for output in outputs:
            running = slot.running.get(output.id)
            if running is None:
                continue
            running.answering = True
            sent.append(output)
            if output.finished:
                self._metrics.observe_end(output.error_kind)
                del slot.running[output.id]
                finished.append(output.id)
        self._send_all(sent, finished)

    def _gauges(self) -> dict[str, float]:
        return {
            "lmi_requests_running": float(sum(len(slot.running) for slot in self._slots)),
            "lmi_requests_waiting": float(self._batcher.num_waiting + len(self._to_retry_alone)),
            "lmi_workers": float(len(self._slots)),
        }
