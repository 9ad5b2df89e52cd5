"""gunicorn's gevent worker, with limits for each connection. It always accepts new connections."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from http import HTTPStatus
from types import FrameType
from typing import Any

import gevent
from gunicorn.http.body import Body, ChunkedReader
from gunicorn.http.errors import (
    ExpectationFailed,
    InvalidResponseHeader,
    InvalidResponseHeaderName,
    LimitRequestHeaders,
    LimitRequestLine,
    ParseException,
    UnsupportedTransferCoding,
)
from gunicorn.http.message import Request
from gunicorn.workers.ggevent import GeventWorker

from lmi_server.http.connection import ClientConnection, ConnectionLimits
from lmi_server.values.show import one_line

_PIECE_BYTES = 64 * 1024
_LAST_IDLE_SECONDS = 1.0
"""Time until the first byte of a request on a connection that is accepted during the shutdown."""
_LOG_INTERVAL_SECONDS = 60.0
"""Minimum time between two log lines about connections closed to make room."""
_STATUSES = {
    LimitRequestLine: HTTPStatus.REQUEST_URI_TOO_LONG,
    LimitRequestHeaders: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    ExpectationFailed: HTTPStatus.EXPECTATION_FAILED,
    UnsupportedTransferCoding: HTTPStatus.NOT_IMPLEMENTED,
}
"""Statuses of malformed HTTP; other kinds get 400."""
_SERVER_FAULTS = (InvalidResponseHeader, InvalidResponseHeaderName)


class Worker(GeventWorker):
    """`worker_class` of `container/run/gunicorn_conf.py`.

    When `worker_connections` are open, a new connection closes the one that has waited longest for its client. Idle
    and slow clients therefore cannot keep other clients out.
    """

    limits = ConnectionLimits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections: set[ClientConnection] = set()
        self._last_log_time = -_LOG_INTERVAL_SECONDS

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        gevent.spawn(self._close_idle)

    def timeout_ctx(self) -> contextlib.AbstractContextManager[None]:
        """Return a context without a timeout, since `ClientConnection` enforces its own."""
        return contextlib.nullcontext()

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        idle_seconds = self.cfg.keepalive if self.alive else _LAST_IDLE_SECONDS
        limits = dataclasses.replace(self.limits, idle_seconds=idle_seconds)
        connection = ClientConnection(client, limits)
        if len(self._connections) >= self.worker_connections - 1:
            self._make_room()
        self._connections.add(connection)
        try:
            super().handle(listener, connection, addr)
        finally:
            self._connections.discard(connection)

    def handle_request(self, listener_name: Any, req: Request, sock: ClientConnection, addr: Any) -> None:
        sock.begin_request()
        _bound_trailers(req.body, sock.limits.head_bytes)
        # Reading pipelined requests does not switch greenlets, so let others run here.
        gevent.sleep(0)
        try:
            super().handle_request(listener_name, req, sock, addr)
        except StopIteration:
            # Closing with unread data would reset the connection, and the response would be lost.
            _discard_rest(req.body)
            raise
        else:
            _discard_rest(req.body)
        finally:
            sock.await_request()
        if not self.alive:
            raise StopIteration  # closes the connection

    def handle_error(
        self, req: Request | None, client: ClientConnection, addr: Any, exc: BaseException
    ) -> None:
        """Send the error for malformed HTTP, or for a fault of the server, before the connection is closed."""
        if not isinstance(exc, Exception):
            return  # the connection ends with the worker
        if not isinstance(exc, ParseException) or isinstance(exc, _SERVER_FAULTS):
            self.log.error("error while a request was answered", exc_info=exc)
            client.refuse(
                HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; the server's log has the details"
            )
            return
        # What seems to be a request line may be part of a prompt, which must not be logged.
        self.log.warning("malformed HTTP: %s", type(exc).__name__)
        problem = one_line(str(exc))
        if isinstance(exc, LimitRequestHeaders):
            fields, size = self.cfg.limit_request_fields, self.cfg.limit_request_field_size
            problem = f"headers: too many or too large; accepted: {fields}, each of at most {size} bytes"
        client.refuse(_STATUSES.get(type(exc), HTTPStatus.BAD_REQUEST), problem)

    def _close_idle(self) -> None:
        """Close idle connections, so that they do not delay the shutdown."""
        for connection in list(self._connections):
            if connection.is_idle:
                connection.evict()

    def _make_room(self) -> None:
        idle = [connection for connection in self._connections if connection.awaits_client]
        if not idle:
            return
        min(idle, key=lambda connection: connection.turn_began).evict()
        if time.monotonic() - self._last_log_time >= _LOG_INTERVAL_SECONDS:
            self._last_log_time = time.monotonic()
            self.log.warning(
                "%d connections are open; closing idle connections to accept new ones", len(self._connections)
            )


def _bound_trailers(body: Body, num_bytes: int) -> None:
    """Limit the size of the trailers that follow a chunked body, as headers are limited."""
    if isinstance(body.reader, ChunkedReader):
        body.reader.limit_trailer_section = num_bytes


def _discard_rest(body: Body) -> None:
    """Read the rest of a body that the application did not read, so that the client can read the response.

    Raises `StopIteration`, which closes the connection, if the start of the next request cannot be found.
    """
    try:
        while not body.failed and body.read(_PIECE_BYTES):
            pass
    except (OSError, ParseException):
        raise StopIteration from None
