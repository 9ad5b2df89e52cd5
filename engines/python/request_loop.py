"""Base class of the dispatchers' loops: the client of each request, clients that disconnect, and draining."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from engines.core import AbortReason, EngineInfo, RequestOutput, SchedulerReply
from engines.engine_socket import CHECK_SECONDS, EngineSocket
from engines.errors import EngineError, InvalidRequest, Unavailable
from engines.health import IDLE_BEAT_SECONDS, EngineState, StatusBoard
from engines.invocations import InvocationOutput
from engines.python.batcher import DynamicBatcher, HasId
from engines.python.metrics import DispatcherMetrics
from engines.python.worker_process import WorkerProcess
from engines.wire import Abort, ConfigureScheduler, Drain, GetStats, Reply, ToClient, ToEngine

logger = logging.getLogger(__name__)

MAX_CRASHES = 3
"""Consecutive crashes of a worker process, with no request to blame, after which it is not restarted."""
REACTION_SECONDS = 5.0
"""Seconds that a call may take to stop after its deadline. After that its process counts as stuck and is killed."""
PAUSE_SECONDS = 10.0
"""Seconds without a turn of the loop, which wakes every `IDLE_BEAT_SECONDS`, after which it must have been paused."""


class EngineFailed(Exception):
    """The engine cannot continue. The message is the cause, on one line."""


RequestT = TypeVar("RequestT", bound=HasId)
OutputT = TypeVar("OutputT", RequestOutput, InvocationOutput)


class RequestLoop(ABC, Generic[RequestT, OutputT]):
    """Tracks the client of each request. Single-threaded. `clock` is `time.monotonic` except in tests."""

    _output_type: type[OutputT]
    _message_type: Callable[[list[OutputT]], ToClient]

    def __init__(
        self,
        info: EngineInfo,
        batcher: DynamicBatcher[RequestT],
        metrics: DispatcherMetrics,
        socket: EngineSocket,
        board: StatusBoard,
        clock: Callable[[], float],
    ) -> None:
        self._info = info
        self._batcher = batcher
        self._metrics = metrics
        self._socket = socket
        self._board = board
        self._clock = clock
        self._clients: dict[str, bytes] = {}
        self._drain_deadline: float | None = None
        self._last_turn = self._checked_at = clock()

    @abstractmethod
    def _check(self, request: RequestT) -> None:
        """Raise `EngineError` if the request cannot be accepted."""

    @abstractmethod
    def _forget(self, request_id: str, reason: AbortReason) -> None:
        """Drop a waiting or running request that its client no longer wants."""

    @abstractmethod
    def _gauges(self) -> dict[str, float]:
        """Return the current values of the gauges."""

    def _is_drained(self) -> bool:
        if self._drain_deadline is None:
            return False
        return self._is_finished() or self._clock() >= self._drain_deadline

    def _is_finished(self) -> bool:
        """Return whether no accepted request is unfinished."""
        return not self._clients

    def _wait_seconds(self, moments: Iterable[float | None]) -> float:
        """Return how long to wait for messages: until the next heartbeat, batch, drain deadline or one of `moments`."""
        now = self._clock()
        due = self._batcher.seconds_until_due(now)
        waits: list[float] = [
            moment - now for moment in (*moments, self._drain_deadline) if moment is not None
        ]
        if due is not None:
            waits.append(due)
        return max(0.0, min([IDLE_BEAT_SECONDS, *waits]))

    def _was_paused(self) -> bool:
        """Return whether the processes were paused, as by `docker pause`, since the last call. Call it in every turn.

        A process that has just continued seems late, but may be healthy.
        """
        last, self._last_turn = self._last_turn, self._clock()
        return self._last_turn - last > PAUSE_SECONDS

    def _submit(self, client: bytes, request: RequestT, num_together: int = 1, num_bytes: int = 0) -> None:
        """Queue a request. See `DynamicBatcher.add` for the last two arguments."""
        try:
            if self._drain_deadline is not None:
                raise Unavailable("the server is shutting down")
            if request.id in self._clients:
                raise InvalidRequest(f"request id {request.id!r} is in use")
            self._check(request)
            self._batcher.add(request, self._clock(), num_together, num_bytes)
        except EngineError as error:
            self._deliver(client, [self._output_type.failed(request.id, error)])
            return
        self._clients[request.id] = client

    def _handle(self, client: bytes, message: ToEngine) -> None:
        """Handle any message from a web process or the supervisor except a new request."""
        match message:
            case Abort(request_id, reason):
                if self._clients.get(request_id) == client:
                    self._abort(request_id, reason)
            case GetStats(token):
                self._socket.send(client, Reply(token, self._metrics.snapshot(self._info, self._gauges())))
            case ConfigureScheduler(token):
                self._socket.send(client, Reply(token, SchedulerReply(None, {})))
            case Drain(seconds):
                logger.info(
                    "draining: waiting at most %.0f s; unfinished requests: %d", seconds, len(self._clients)
                )
                self._drain_deadline = self._clock() + seconds
                self._board.set_state(EngineState.DRAINING)

    def _abort(self, request_id: str, reason: AbortReason) -> None:
        del self._clients[request_id]
        self._metrics.observe_abort(reason)
        self._forget(request_id, reason)

    def _set_state(self, state: EngineState, reason: str = "") -> None:
        if self._drain_deadline is None:  # a draining engine stays in that state
            self._board.set_state(state, reason)

    def _restart_process(self, process: WorkerProcess[Any]) -> None:
        """Restart a process that is gone, and watch its new socket."""
        self._socket.unwatch(process.fileno())
        process.restart()
        self._socket.watch(process.fileno())
        self._metrics.restarts += 1

    def _send_all(self, outputs: Sequence[OutputT], finished: Sequence[str]) -> None:
        """Send outputs as one message per client, and abort the requests of clients that are gone. Call it in every
        turn, with or without outputs, to check all clients from time to time.

        finished: ids of the requests that these outputs complete.
        """
        by_client: defaultdict[bytes, list[OutputT]] = defaultdict(list)
        now = self._clock()
        if now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            by_client.update({client: [] for client in self._clients.values()})
        for output in outputs:
            by_client[self._clients[output.id]].append(output)
        for request_id in finished:
            del self._clients[request_id]
        for client in [client for client, batch in by_client.items() if not self._deliver(client, batch)]:
            orphans = [request_id for request_id, owner in self._clients.items() if owner == client]
            logger.warning("a web process disconnected; dropped requests: %d", len(orphans))
            for request_id in orphans:
                self._abort(request_id, AbortReason.CLIENT_LEFT)

    def _deliver(self, client: bytes, outputs: list[OutputT]) -> bool:
        """Send outputs as one message; return False when the client is gone."""
        return self._socket.send(client, self._message_type(outputs))

    def _fail_unfinished(self) -> None:
        """Fail the requests that are unfinished at the end of the drain."""
        error = Unavailable("the server is shutting down and could not finish this request in time")
        logger.info("drained; unfinished requests: %d", len(self._clients))
        for request_id, client in self._clients.items():
            self._deliver(client, [self._output_type.failed(request_id, error)])
