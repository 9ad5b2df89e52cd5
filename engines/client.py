"""The client of an engine in another process, for the web process.

Built on gevent: one greenlet receives, any number wait for outputs. Created after gunicorn's fork.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import gevent
import gevent.event
import zmq.green as zmq
from gevent.hub import Waiter

from engines.core import AbortReason, EngineStats, Request, RequestOutput, SchedulerReply, SettingValue
from engines.errors import EngineDied, EngineError, InvalidRequest, RequestFailed
from engines.health import EngineState, Health, StatusBoard
from engines.invocations import Invocation, InvocationOutput
from engines.wire import (
    MAX_MESSAGE_BYTES,
    Abort,
    ConfigureScheduler,
    GetStats,
    InvocationOutputs,
    Invoke,
    Outputs,
    Submit,
    ToEngine,
    decode_to_client,
    encode,
)

_BOARD_INTERVAL_SECONDS = 0.2
_LAST_OUTPUTS_SECONDS = 0.2
"""Time to wait for outputs that an engine sent before it died."""
_LAST_OUTPUTS_PAUSES = 4
"""Number of pauses in this wait, so that the receiving greenlet gets a turn even after a stall of the machine."""

_MAX_UNREAD_BYTES = 128 * 1024 * 1024
"""Maximum unread bytes of a handler's stream. It does not apply to responses that the handler returned as a whole."""

EngineOutput = TypeVar("EngineOutput", RequestOutput, InvocationOutput)


class ClientStream(Generic[EngineOutput]):
    """A `RequestStream` or an `InvocationStream`, for one greenlet."""

    def __init__(self, output_type: type[EngineOutput]) -> None:
        self._output_type: type[EngineOutput] = output_type
        self._outputs: deque[EngineOutput] = deque()
        self._waiter: Waiter[None] | None = None

    @property
    def overflows(self) -> bool:
        """Whether the client reads so slowly that unread outputs could exhaust the memory."""
        return False

    def put(self, output: EngineOutput) -> None:
        self._outputs.append(output)
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            gevent.get_hub().loop.run_callback(waiter.switch, None)

    def fail(self, request_id: str, error: EngineError) -> None:
        """Put an error as the last output of a request."""
        self.put(self._output_type.failed(request_id, error))

    def next(self, timeout: float) -> EngineOutput | None:
        if not self._outputs:
            self._wait(max(0.0, timeout))
        return self._outputs.popleft() if self._outputs else None

    def _wait(self, timeout: float) -> None:
        """Wait for `put`. A gevent queue and its timeouts cost several times as much per token."""
        waiter = self._waiter = Waiter()
        timer = gevent.get_hub().loop.timer(timeout)
        timer.start(waiter.switch, None, update=True)  # else it begins when the loop last ran
        try:
            waiter.get()
        finally:
            timer.close()
            self._waiter = None


class AnswerStream(ClientStream[InvocationOutput]):
    """The stream of a handler's answer. It counts the bytes that are waiting to be read."""

    def __init__(self) -> None:
        super().__init__(InvocationOutput)
        self._num_unread_bytes = 0
        self._whole = False

    @property
    def overflows(self) -> bool:
        return not self._whole and self._num_unread_bytes > _MAX_UNREAD_BYTES

    def put(self, output: InvocationOutput) -> None:
        self._whole |= output.whole
        self._num_unread_bytes += len(output.body)
        super().put(output)

    def next(self, timeout: float) -> InvocationOutput | None:
        output = super().next(timeout)
        self._num_unread_bytes -= len(output.body) if output is not None else 0
        return output


class EngineClient:
    """An `Engine` in another process, for the greenlets of one thread."""

    def __init__(self, address: str, status_path: Path) -> None:
        """Connect to the engine, which need not have started: messages wait for it."""
        self._address = address
        self._status_path = status_path
        self.num_restarts = 0
        """Number of restarts of the engine."""
        self._context = zmq.Context()
        self._streams: dict[str, ClientStream[Any]] = {}
        self._replies: dict[int, gevent.event.AsyncResult[EngineStats | SchedulerReply]] = {}
        self._tokens = itertools.count()
        self._connect()
        self._watcher = gevent.spawn(self._watch_board)

    def _connect(self) -> None:
        self._board = StatusBoard.open(self._status_path)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(self._address)
        self._receiver = gevent.spawn(self._receive)

    def _disconnect(self) -> None:
        self._receiver.kill()
        self._socket.close(linger=0)
        self._board.close()

    def submit(self, *requests: Request) -> ClientStream[RequestOutput]:
        stream = ClientStream(RequestOutput)
        self.submit_to(stream, *requests)
        return stream

    def submit_to(self, stream: ClientStream[RequestOutput], *requests: Request) -> None:
        """Submit requests with outputs to a stream that other engines may share."""
        request_ids = [request.id for request in requests]
        self._streams |= dict.fromkeys(request_ids, stream)
        self._send_requests(request_ids, Submit.of(requests))

    def invoke(self, invocation: Invocation) -> ClientStream[InvocationOutput]:
        stream = AnswerStream()
        self._streams[invocation.id] = stream
        self._send_requests([invocation.id], Invoke(invocation))
        return stream

    def abort(self, request_id: str, reason: AbortReason) -> None:
        if self._streams.pop(request_id, None) is not None:
            self._send(Abort(request_id, reason))

    def health(self) -> Health:
        return self._board.read()

    def stats(self, timeout: float) -> EngineStats | None:
        reply = self._call(GetStats(next(self._tokens)), timeout)
        return reply if isinstance(reply, EngineStats) else None

    def configure_scheduler(
        self, changes: Mapping[str, SettingValue], timeout: float
    ) -> SchedulerReply | None:
        reply = self._call(ConfigureScheduler(next(self._tokens), dict(changes)), timeout)
        return reply if isinstance(reply, SchedulerReply) else None

    def close(self) -> None:
        self._watcher.kill()
        self._disconnect()
        self._context.term()

    def _call(
        self, message: GetStats | ConfigureScheduler, timeout: float
    ) -> EngineStats | SchedulerReply | None:
        """Return the reply with the same token; None when there is none within `timeout` seconds."""
        if self._dead():
            return None
        reply: gevent.event.AsyncResult[EngineStats | SchedulerReply] = gevent.event.AsyncResult()
        self._replies[message.token] = reply
        try:
            self._send(message)
            result: EngineStats | SchedulerReply = reply.get(timeout=timeout)
            return result
        except gevent.Timeout:
            return None
        finally:
            del self._replies[message.token]

    def _send_requests(self, request_ids: Sequence[str], message: Submit | Invoke) -> None:
        """Send requests, or fail them if the engine is dead or they are too large: the engine would close the
        connection of all requests."""
        if self._dead():
            for request_id in request_ids:
                self._fail(request_id)
            return
        data = encode(message)
        if len(data) <= MAX_MESSAGE_BYTES:
            self._socket.send(data)
            return
        error = InvalidRequest(f"request: given {len(data)} bytes; accepted: at most {MAX_MESSAGE_BYTES}")
        for request_id in request_ids:
            self._streams.pop(request_id).fail(request_id, error)

    def _send(self, message: ToEngine) -> None:
        self._socket.send(encode(message))

    def _receive(self) -> None:
        while True:
            message = decode_to_client(self._socket.recv())
            if isinstance(message, Outputs | InvocationOutputs):
                for output in message.outputs:
                    self._deliver(output)
            elif (reply := self._replies.get(message.token)) is not None:
                reply.set(message.content)

    def _deliver(self, output: RequestOutput | InvocationOutput) -> None:
        # An output of an aborted request may still arrive: drop it.
        stream = self._streams.get(output.id)
        if stream is not None:
            if output.finished:
                del self._streams[output.id]
            stream.put(output)
            if stream.overflows and not output.finished:
                self._end_overflowing(output.id, stream)

    def _end_overflowing(self, request_id: str, stream: ClientStream[Any]) -> None:
        """Abort a handler's stream that its client reads too slowly."""
        gevent.sleep(0)  # give the reader a turn
        if stream.overflows and request_id in self._streams:
            self.abort(request_id, AbortReason.FAILED)
            size = f"{_MAX_UNREAD_BYTES // 1024**2} MiB"
            error = f"the client reads the stream more slowly than the handler sends it; more than {size} were unread"
            stream.fail(request_id, RequestFailed(error))

    def _watch_board(self) -> None:
        """Fail all requests when the engine dies, since a dead engine sends no message. Then wait for its successor."""
        while True:
            if self._streams and self._dead():
                for _ in range(_LAST_OUTPUTS_PAUSES):
                    gevent.sleep(_LAST_OUTPUTS_SECONDS / _LAST_OUTPUTS_PAUSES)
                for request_id in list(self._streams):
                    self._fail(request_id)
            if self._dead() and self._board.is_replaced:
                # Use a new socket: the old one would send the successor the messages that its predecessor did not read.
                self._disconnect()
                self._connect()
                self.num_restarts += 1
            gevent.sleep(_BOARD_INTERVAL_SECONDS)

    def _dead(self) -> bool:
        return self._board.read().state in (EngineState.FAILED, EngineState.STOPPED)

    def _fail(self, request_id: str) -> None:
        # The cause is for the operator, in the log and on `/ping`; it may hold details that clients must not see.
        error = EngineDied("the engine process ended while running this request")
        self._streams.pop(request_id).fail(request_id, error)
