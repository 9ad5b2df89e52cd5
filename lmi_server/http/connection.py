"""A client's connection that does not wait for ever: for a request, for its body, for somebody who reads the answer.

gunicorn's worker reads and writes through it and knows nothing of these limits.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import struct
import time
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

import gevent
from gevent import socket as gevent_socket

_NO_WAIT_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a client may take."""

    idle_seconds: float = 75.0
    """Until the first byte of a request; longer than load balancers keep a connection without one."""
    head_seconds: float = 10.0
    """From there to the end of its headers."""
    head_bytes: int = 32 * 1024
    """Of request line and headers."""
    body_seconds: float = 240.0
    """For the whole of a body, however fast it comes; as long as `option.predict_timeout` is by default."""
    stall_seconds: float = 30.0
    """For which a client may send or read nothing at all in the midst of a body or an answer."""
    bytes_per_second: int = 1024
    """What a client has to send or read on average over that time."""


class _Phase(Enum):
    IDLE = "no byte of the next request is here"
    HEAD = "its headers are not complete"
    REQUEST = "its body is read, or it is answered"


class Pace:
    """The seconds that a client may still let us wait: bytes that move give some back, up to all of them."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self.seconds_left = limits.stall_seconds

    def moved(self, num_bytes: int, waited: float) -> None:
        left = self.seconds_left - waited + num_bytes / self._limits.bytes_per_second
        self.seconds_left = min(left, self._limits.stall_seconds)


class Connection(gevent_socket.socket):
    """Takes over an accepted socket. One greenlet reads and writes; another one may look (`MSG_PEEK`)."""

    def __init__(self, accepted: gevent_socket.socket, limits: ConnectionLimits) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self.limits = limits
        self.awaits_client = False
        """Whether bytes of a request are waited for right now."""
        self._evicted = False
        self.await_request()

    def await_request(self) -> None:
        """The next bytes are those of a new request."""
        self._begin(_Phase.IDLE, self.limits.idle_seconds)

    def begin_request(self) -> None:
        """The headers are complete; the next bytes are those of the body."""
        self._begin(_Phase.REQUEST, self.limits.body_seconds)
        self._reading = Pace(self.limits)
        self._writing = Pace(self.limits)

    def _begin(self, phase: _Phase, seconds: float) -> None:
        self._phase = phase
        self.turn_began = time.monotonic()
        self._deadline = self.turn_began + seconds
        self._num_head_bytes = 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        """As a socket's. A connection on which no request comes in time ends as if the client had closed it.

        Raises `TimeoutError`: the client takes too long to send a body.
        """
        if flags:
            return self._received(size, flags)
        return self._recv_body(size) if self._phase is _Phase.REQUEST else self._recv_head(size)

    def sendall(self, data: bytes, flags: int = 0) -> None:
        """As a socket's. Raises `ConnectionResetError`: the client reads too slowly, or not at all."""
        pace = self._writing if self._phase is _Phase.REQUEST else Pace(self.limits)
        # Nearly always there is room for all of it, and nothing to wait for.
        sent = self._send_now(data, flags)
        pace.moved(sent, 0.0)
        rest = memoryview(data)[sent:]
        while rest:
            began = time.monotonic()
            sent = 0
            with gevent.Timeout(max(pace.seconds_left, 0.0), False):
                sent = self.send(rest, flags)
            pace.moved(sent, time.monotonic() - began)
            if pace.seconds_left <= 0:
                self._drop_what_is_not_sent()
                raise ConnectionResetError(errno.ECONNRESET, "the client does not read its answer")
            rest = rest[sent:]

    def evict(self) -> None:
        """End the connection for the sake of others; whoever reads from it finds its end."""
        self._evicted = True
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def _send_now(self, data: bytes, flags: int) -> int:
        """What the kernel takes at once, in bytes."""
        try:
            num_bytes: int = self.send(data, flags, timeout=0.0)
        except BlockingIOError:
            return 0
        return num_bytes

    def _received(self, size: int, flags: int = 0) -> bytes:
        data: bytes = super().recv(size, flags)
        return data

    def _recv_within(self, seconds: float, size: int) -> bytes:
        """Raises `TimeoutError`."""
        if seconds <= 0:
            raise TimeoutError("the client took too long")
        self.awaits_client = True
        self.settimeout(seconds)
        try:
            return self._received(size)
        except OSError:
            if not self._evicted:
                raise
            return b""
        finally:
            self.settimeout(None)
            self.awaits_client = False

    def _recv_head(self, size: int) -> bytes:
        """Whole lines, so that gunicorn does not look at each byte that trickles in."""
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
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the headers took too long to arrive")
            return b""
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the headers are larger than {self.limits.head_bytes} bytes",
        )
        return b""

    def _recv_body(self, size: int) -> bytes:
        began = time.monotonic()
        data = self._recv_within(min(self._reading.seconds_left, self._deadline - began), size)
        waited = time.monotonic() - began
        self._reading.moved(len(data), waited)
        if waited < _NO_WAIT_SECONDS:
            # A client that sends faster than its bytes are taken in would never let others have their turn.
            gevent.sleep(0)
        return data

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        body = json.dumps({"error": message, "code": status.value}).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            self.sendall(head.encode() + body)

    def _drop_what_is_not_sent(self) -> None:
        """Else the kernel would keep it for a client that does not take it."""
        with contextlib.suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
