"""A client's connection with time limits: for a request, for its body, and for reading the answer.

gunicorn's worker reads and writes through it and does not know of these limits.
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


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Seconds and bytes that a client may take."""

    idle_seconds: float = 75.0
    """Until the first byte of a request; longer than load balancers keep an idle connection."""
    head_seconds: float = 10.0
    """From there to the end of its headers."""
    head_bytes: int = 32 * 1024
    """Of request line and headers."""
    body_seconds: float = 240.0
    """For a whole body, at any speed; the default of `option.predict_timeout`."""
    stall_seconds: float = 30.0
    """For which a client may send or read nothing within a body or an answer."""
    bytes_per_second: int = 1024
    """The least average rate over that time."""


class _Phase(Enum):
    IDLE = "the next request has not begun"
    HEAD = "its headers are incomplete"
    REQUEST = "its body is being read, or it is being answered"


class Pace:
    """The seconds for which a client may still stall. Bytes that move add to them, up to the limit."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self.seconds_left = limits.stall_seconds

    def moved(self, num_bytes: int, waited: float) -> None:
        left = self.seconds_left - waited + num_bytes / self._limits.bytes_per_second
        self.seconds_left = min(left, self._limits.stall_seconds)


class ClientConnection(gevent_socket.socket):
    """Takes over an accepted socket. One greenlet reads and writes; another one may peek (`MSG_PEEK`)."""

    def __init__(self, accepted: gevent_socket.socket, limits: ConnectionLimits) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self.limits = limits
        self.awaits_client = False
        """Whether it waits for bytes of a request right now."""
        self._evicted = False
        self.await_request()

    def await_request(self) -> None:
        """Expect a new request."""
        self._begin(_Phase.IDLE, self.limits.idle_seconds)

    def begin_request(self) -> None:
        """Expect the body: the headers are complete."""
        self._begin(_Phase.REQUEST, self.limits.body_seconds)
        self._reading = Pace(self.limits)
        self._writing = Pace(self.limits)

    def _begin(self, phase: _Phase, seconds: float) -> None:
        self._phase = phase
        self.turn_began = time.monotonic()
        self._deadline = self.turn_began + seconds
        self._num_head_bytes = 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive as a socket does. Without a request in time, the connection ends as if the client had closed it.

        Raises `TimeoutError`: the client takes too long to send a body.
        """
        if flags:
            return self._received(size, flags)
        return self._recv_body(size) if self._phase is _Phase.REQUEST else self._recv_head(size)

    def sendall(self, data: bytes, flags: int = 0) -> None:
        """Send as a socket does. Raises `ConnectionResetError`: the client reads too slowly, or not at all."""
        pace = self._writing if self._phase is _Phase.REQUEST else Pace(self.limits)
        # Nearly always the kernel takes all of it at once.
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

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun to arrive."""
        return self._phase is _Phase.IDLE

    def evict(self) -> None:
        """End the connection, which waits for its client; its reader sees the end."""
        self._evicted = True
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def _send_now(self, data: bytes, flags: int) -> int:
        """Return the number of bytes that the kernel takes at once."""
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
        """Receive whole lines, so that gunicorn does not parse each byte that trickles in."""
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
        self._reading.moved(len(data), time.monotonic() - began)
        # Bytes that are already here are received without a pause in which other greenlets run.
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
        """Let the kernel drop what the client does not read."""
        with contextlib.suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
