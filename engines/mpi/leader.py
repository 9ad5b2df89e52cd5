"""Rank 0's loop: receive, step, send."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable

from engines.core import AbortReason, EngineInfo, Request, RequestOutput, SchedulerReply
from engines.errors import EngineError, RequestFailed, Unavailable
from engines.front import Front
from engines.health import IDLE_BEAT_SECONDS, EngineState, StatusBoard
from engines.metrics import EngineMetrics
from engines.mpi.engine_core import EngineCore, ended_outputs
from engines.mpi.scheduler.request_check import check_together
from engines.mpi.scheduler.settings import InvalidSettings
from engines.stopwatch import Stopwatch
from engines.wire import Abort, ConfigureScheduler, Drain, GetStats, Reply, Submit, ToEngine

logger = logging.getLogger(__name__)


_PAUSE_SECONDS = 0.0015
"""Minimum time between two messages to a web process, per output of a step. Waking a stream costs the web process
about 0.05 ms, on the cores that compute the next step."""
_LONGEST_PAUSE_SECONDS = 0.05
"""Upper limit of that time, so that readers see text arrive without a break."""


class Leader:
    """Rank 0's loop. Tracks the clients and their requests, sends outputs, and drains at shutdown."""

    def __init__(
        self,
        core: EngineCore,
        board: StatusBoard,
        stopwatch: Stopwatch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: the same as the core's."""
        self._core = core
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
        self._deadline: float | None = None

    def warm_up(self, request: Request) -> None:
        """Run one request to its end, so that 'ready' means that the loaded model has computed.

        Raises:
            RequestFailed: the request failed.
        """
        self._core.add(request)
        while self._core.has_work:
            for output in self._core.step():
                if output.error_kind:
                    raise RequestFailed(f"the warm-up failed: {output.error_message}")
        self._core.metrics = EngineMetrics()

    def serve(self, front: Front, info: EngineInfo) -> None:
        """Run the loop until a `Drain` is complete."""
        core = self._core
        while self._deadline is None or (core.has_work and self._clock() < self._deadline):
            timeout = 0.0 if core.has_work else IDLE_BEAT_SECONDS
            for client, message in front.receive(timeout):
                self._handle(front, info, client, message)
            self._send(front, core.step(lambda: self._flush(front)))
            self._stopwatch.stop("send")
        self._shut_down(front)

    def _handle(self, front: Front, info: EngineInfo, client: bytes, message: ToEngine) -> None:
        core = self._core
        match message:
            case Submit():
                self._submit(front, client, message.whole())
            case Abort(request_id, reason):
                if self._clients.get(request_id) == client:
                    self._abort(request_id, reason)
            case GetStats(token):
                front.send(client, Reply(token, core.stats(info)))
            case ConfigureScheduler(token, changes):
                try:
                    answer = SchedulerReply(core.configure(changes), {})
                except InvalidSettings as error:
                    answer = SchedulerReply(core.settings, error.refused)
                front.send(client, Reply(token, answer))
            case Drain(seconds):
                logger.info(
                    "draining: waiting at most %.0f s; unfinished requests: %d", seconds, len(self._clients)
                )
                self._board.set_state(EngineState.DRAINING)
                self._deadline = self._clock() + seconds

    def _submit(self, front: Front, client: bytes, requests: tuple[Request, ...]) -> None:
        try:
            if self._deadline is not None:
                raise Unavailable("the server is shutting down")
            check_together(requests, self._core.settings)
        except EngineError as error:
            front.send_outputs(client, [RequestOutput.failed(request.id, error) for request in requests])
            return
        for request in requests:
            try:
                self._core.add(request)
            except EngineError as error:
                front.send_outputs(client, [RequestOutput.failed(request.id, error)])
                continue
            self._clients[request.id] = client
            self._unanswered.add(request.id)

    def _abort(self, request_id: str, reason: AbortReason) -> None:
        self._core.abort(request_id, reason)
        self._clients.pop(request_id, None)
        self._unanswered.discard(request_id)

    def _send(self, front: Front, outputs: list[RequestOutput]) -> None:
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
        pause = min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * len(outputs))
        if urgent or now - self._sent_at >= pause:
            self._flush(front)
        self._drop_disconnected()

    def _flush(self, front: Front) -> None:
        """Send the held outputs. Does not abort requests of clients that are gone: a step may be planned already."""
        self._sent_at = self._clock()
        for client, batch in self._unsent.items():
            if not front.send_outputs(client, batch):
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

    def _shut_down(self, front: Front) -> None:
        """Fail the requests that are not finished in time, then stop the other ranks."""
        error = Unavailable("the server is shutting down and could not finish this request in time")
        rest = self._core.request_ids()
        self._send(front, [RequestOutput.failed(request_id, error) for request_id in rest])
        for request_id in rest:
            self._core.abort(request_id, AbortReason.SHUTDOWN)
        logger.info("drained; unfinished requests: %d", len(rest))
        self._core.stop()
        front.close()
