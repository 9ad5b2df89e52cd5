"""A client connection with time limits for the headers, the body, and reading the response.

gunicorn's worker reads and writes through the connection and does not know about the limits.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import struct
import time
import uuid
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

import gevent
from gevent import socket as gevent_socket


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on the time and bytes that a client may use."""

    idle_seconds: float = 75.0
    """Time until the first byte of a request. The gunicorn worker sets it to its `keepalive`."""
    head_seconds: float = 10.0
    """Time from the first byte to the end of the headers."""
    head_bytes: int = 32 * 1024
    """Maximum size of request line and headers."""
    body_seconds: float = 240.0
    """Time for a whole body, at any speed; equals the default of `option.predict_timeout`."""
    stall_seconds: float = 30.0
    """Time for which a client may send or read nothing within a body or a response."""
    bytes_per_second: int = 1024
    """Minimum average rate over `stall_seconds`."""
    send_seconds: float = 60.0
    """Time in which a client must read a whole response or one piece of a stream, besides `send_bytes_per_second`."""
    send_bytes_per_second: int = 256 * 1024
    """Bytes of a response for which this time grows by a second."""


class _Phase(Enum):
    IDLE = "the next request has not begun"
    HEAD = "the headers of a request are incomplete"
    REQUEST = "a request is being read or answered"


class StallBudget:
    """The seconds for which a client may still stall. Each transfer adds seconds, up to the limit."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self.seconds_left = limits.stall_seconds

    def record_transfer(self, num_bytes: int, waited: float) -> None:
        left = self.seconds_left - waited + num_bytes / self._limits.bytes_per_second
        self.seconds_left = min(left, self._limits.stall_seconds)


class ClientConnection(gevent_socket.socket):
    """An accepted socket with time limits. One greenlet reads and writes; another one may peek (`MSG_PEEK`)."""

    def __init__(self, accepted: gevent_socket.socket, limits: ConnectionLimits) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self.limits = limits
        self.awaits_client = False
        """Whether the connection is currently waiting for bytes of a request."""
        self._evicted = False
        self.await_request()

    def await_request(self) -> None:
        """Expect a new request."""
        self._start_phase(_Phase.IDLE, self.limits.idle_seconds)

    def begin_request(self) -> None:
        """Expect the body, after the headers are complete."""
        self._start_phase(_Phase.REQUEST, self.limits.body_seconds)
        self._read_budget = StallBudget(self.limits)
        self._write_budget = StallBudget(self.limits)

    def _start_phase(self, phase: _Phase, seconds: float) -> None:
        self._phase = phase
        self.turn_began = time.monotonic()
        self._deadline = self.turn_began + seconds
        self._num_head_bytes = 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive like `socket.recv`. If no request arrives in time, act as if the client had closed the connection.

        Raises `TimeoutError` if the client takes too long to send a body.
        """
        if flags:
            return self._recv_raw(size, flags)
        return self._recv_body(size) if self._phase is _Phase.REQUEST else self._recv_head(size)

    def sendall(self, data: bytes, flags: int = 0) -> None:
        """Send like `socket.sendall`. Raises `ConnectionResetError` if the client reads too slowly or not at all."""
        deadline = time.monotonic() + self.limits.send_seconds + len(data) / self.limits.send_bytes_per_second
        budget = self._write_budget if self._phase is _Phase.REQUEST else StallBudget(self.limits)
        # Almost always the kernel accepts all data at once.
        sent = self._send_now(data, flags)
        budget.record_transfer(sent, 0.0)
        rest = memoryview(data)[sent:]
        while rest:
            began = time.monotonic()
            sent = 0
            with gevent.Timeout(max(min(budget.seconds_left, deadline - began), 0.0), False):
                sent = self.send(rest, flags)
            now = time.monotonic()
            budget.record_transfer(sent, now - began)
            if budget.seconds_left <= 0 or now >= deadline:
                self._discard_unsent_data()
                raise ConnectionResetError(errno.ECONNRESET, "the client does not read the response")
            rest = rest[sent:]

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun to arrive."""
        return self._phase is _Phase.IDLE

    def evict(self) -> None:
        """Close a connection that is waiting for its client. The reader gets an end of file."""
        self._evicted = True
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def refuse(self, status: HTTPStatus, message: str) -> None:
        """Send an error in the form of `/invocations`, before the application can answer. The caller closes."""
        body = json.dumps({"error": message, "code": status.value}).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"x-request-id: {uuid.uuid4().hex}\r\nCache-Control: no-cache\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            self.sendall(head.encode() + body)

    def _send_now(self, data: bytes, flags: int) -> int:
        """Send without blocking; return the number of bytes that the kernel accepted."""
        try:
            num_bytes: int = self.send(data, flags, timeout=0.0)
        except BlockingIOError:
            return 0
        return num_bytes

    def _recv_raw(self, size: int, flags: int = 0) -> bytes:
        data: bytes = super().recv(size, flags)
        return data

    def _recv_within(self, seconds: float, size: int) -> bytes:
        """Receive within a time limit. Raises `TimeoutError`."""
        if seconds <= 0:
            raise TimeoutError("the client took too long")
        self.awaits_client = True
        self.settimeout(seconds)
        try:
            return self._recv_raw(size)
        except OSError:
            if not self._evicted:
                raise
            return b""
        finally:
            self.settimeout(None)
            self.awaits_client = False

    def _recv_head(self, size: int) -> bytes:
        """Receive whole lines, so that gunicorn does not parse the headers again for every byte of a slow client."""
        lines = b""
        try:
            while self._num_head_bytes <= self.limits.head_bytes:
                data = self._recv_within(self._deadline - time.monotonic(), size)
                if self._phase is _Phase.IDLE:
                    self._phase = _Phase.HEAD
                    self._deadline = time.monotonic() + self.limits.head_seconds
                self._num_head_bytes += len(data)
                lines += data
                if not data or b"\n" in data:
                    return lines
        except TimeoutError:
            if self._phase is _Phase.HEAD:
                self.refuse(HTTPStatus.REQUEST_TIMEOUT, "the headers took too long to arrive")
            return b""
        self.refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the headers are larger than {self.limits.head_bytes} bytes",
        )
        return b""

    def _recv_body(self, size: int) -> bytes:
        began = time.monotonic()
        data = self._recv_within(min(self._read_budget.seconds_left, self._deadline - began), size)
        self._read_budget.record_transfer(len(data), time.monotonic() - began)
        # Receiving bytes that have already arrived does not switch greenlets, so let others run here.
        gevent.sleep(0)
        return data

    def _discard_unsent_data(self) -> None:
        """Make the kernel discard unsent data when the connection is closed."""
        with contextlib.suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
