"""Rank 0's loop: receive, step, send."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable

from engines.core import AbortReason, EngineInfo, Request, RequestOutput, SchedulerReply
from engines.engine_socket import CHECK_SECONDS, EngineSocket
from engines.errors import EngineError, Unavailable
from engines.health import IDLE_BEAT_SECONDS, EngineState, StatusBoard
from engines.mpi.engine_core import EngineCore, ended_outputs
from engines.mpi.scheduler.request_check import check_together
from engines.mpi.scheduler.settings import InvalidSettings
from engines.stopwatch import Stopwatch
from engines.wire import Abort, ConfigureScheduler, Drain, GetStats, Outputs, Reply, Submit, ToEngine

logger = logging.getLogger(__name__)


_PAUSE_SECONDS = 0.0015
"""Minimum time between two messages to a web process, per output of a step. Waking a stream costs the web process
about 0.05 ms, on the cores that compute the next step."""
_MAX_PAUSE_SECONDS = 0.05
"""Upper limit of that time, so that readers see text arrive without a break."""


class Leader:
    """Rank 0's loop. Tracks the clients and their requests, sends outputs, and drains at shutdown."""

    def __init__(
        self,
        core: EngineCore,
        info: EngineInfo,
        socket: EngineSocket,
        board: StatusBoard,
        stopwatch: Stopwatch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: the same as the core's."""
        self._core = core
        self._info = info
        self._socket = socket
        self._clock = clock
        self._board = board
        self._stopwatch = stopwatch
        self._clients: dict[str, bytes] = {}
        self._unanswered: set[str] = set()
        """Requests without an output so far."""
        self._unsent: defaultdict[bytes, list[RequestOutput]] = defaultdict(list)
        """Outputs still to be sent, by client."""
        self._disconnected: set[bytes] = set()
        """Clients whose requests are to be aborted after the step."""
        self._sent_at = 0.0
        self._checked_at = clock()
        self._deadline: float | None = None

    def serve(self) -> None:
        """Run the loop until a `Drain` is complete."""
        core = self._core
        while self._deadline is None or (core.has_work and self._clock() < self._deadline):
            timeout = 0.0 if core.has_work else IDLE_BEAT_SECONDS
            for client, message in self._socket.receive(timeout):
                self._handle(client, message)
            self._send(core.step(self._flush))
            self._stopwatch.stop("send")
        self._shut_down()

    def _handle(self, client: bytes, message: ToEngine) -> None:
        core = self._core
        match message:
            case Submit():
                self._submit(client, message.whole())
            case Abort(request_id, reason):
                if self._clients.get(request_id) == client:
                    self._abort(request_id, reason)
            case GetStats(token):
                self._socket.send(client, Reply(token, core.stats(self._info)))
            case ConfigureScheduler(token, changes):
                try:
                    answer = SchedulerReply(core.configure(changes), {})
                except InvalidSettings as error:
                    answer = SchedulerReply(core.settings, error.refused)
                self._socket.send(client, Reply(token, answer))
            case Drain(seconds):
                logger.info(
                    "draining: waiting at most %.0f s; unfinished requests: %d", seconds, len(self._clients)
                )
                self._board.set_state(EngineState.DRAINING)
                self._deadline = self._clock() + seconds

    def _submit(self, client: bytes, requests: tuple[Request, ...]) -> None:
        try:
            if self._deadline is not None:
                raise Unavailable("the server is shutting down")
            check_together(requests, self._core.settings)
        except EngineError as error:
            refusals = [RequestOutput.failed(request.id, error) for request in requests]
            self._socket.send(client, Outputs(refusals))
            return
        for request in requests:
            try:
                self._core.add(request)
            except EngineError as error:
                self._socket.send(client, Outputs([RequestOutput.failed(request.id, error)]))
                continue
            self._clients[request.id] = client
            self._unanswered.add(request.id)

    def _abort(self, request_id: str, reason: AbortReason) -> None:
        self._core.abort(request_id, reason)
        self._clients.pop(request_id, None)
        self._unanswered.discard(request_id)

    def _send(self, outputs: list[RequestOutput]) -> None:
        """Send the outputs of a step, or hold them for a later message: one message for several steps costs a web
        process little more than a message for one. First and last tokens are never held. Held outputs are sent with
        them, or before a long step."""
        unsent, clients, unanswered = self._unsent, self._clients, self._unanswered
        urgent = False
        for output in outputs:
            unsent[clients[output.id]].append(output)
            if output.id in unanswered:
                unanswered.remove(output.id)
                urgent = True
        for output in ended_outputs(outputs):
            del clients[output.id]
            urgent = True
        now = self._clock()
        pause = min(_MAX_PAUSE_SECONDS, _PAUSE_SECONDS * len(outputs))
        if urgent or now - self._sent_at >= pause:
            self._flush()
        self._drop_disconnected()

    def _flush(self) -> None:
        """Send the held outputs. Does not abort requests of clients that are gone: a step may be planned already."""
        self._sent_at = self._clock()
        if self._sent_at - self._checked_at >= CHECK_SECONDS:
            self._checked_at = self._sent_at
            for client in set(self._clients.values()):
                self._unsent.setdefault(client, [])
        for client, batch in self._unsent.items():
            if not self._socket.send(client, Outputs(batch)):
                self._disconnected.add(client)
        self._unsent.clear()

    def _drop_disconnected(self) -> None:
        for client in self._disconnected:
            self._unsent.pop(client, None)
            request_ids = [request_id for request_id, owner in self._clients.items() if owner == client]
            logger.warning("a web process disconnected; dropped requests: %d", len(request_ids))
            for request_id in request_ids:
                self._abort(request_id, AbortReason.CLIENT_LEFT)
        self._disconnected.clear()

    def _shut_down(self) -> None:
        """Fail the requests that are not finished in time, then stop the other ranks."""
        error = Unavailable("the server is shutting down and could not finish this request in time")
        rest = self._core.request_ids()
        self._send([RequestOutput.failed(request_id, error) for request_id in rest])
        for request_id in rest:
            self._core.abort(request_id, AbortReason.SHUTDOWN)
        logger.info("drained; unfinished requests: %d", len(rest))
        self._core.stop()
        self._socket.close()
