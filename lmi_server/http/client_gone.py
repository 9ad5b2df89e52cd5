"""Detect that a client has disconnected. WSGI reports this only on a write.

gunicorn puts the connection into the WSGI environment. The connection is readable when the client has closed it, or
has sent more (a pipelined request). MSG_PEEK distinguishes the two.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gevent
from gevent import monkey
from gevent import socket as gevent_socket

CLIENT_GONE_STATUS = 499
"""HTTP status in the counters for a client that disconnected, and in the log if it did so before the response."""
_POLL_SECONDS = 0.25
"""Interval at which a wait checks the clock and the client."""
# gevent removes `select.poll`. The original is safe here, because it is called without waiting.
_poll: Any = monkey.get_original("select", "poll")

Output = TypeVar("Output")


class ClientDisconnected(Exception):
    """The client disconnected before the response was complete."""


class ClientWatch:
    """Watches one connection from `start` to `stop`. Without a connection, `disconnected` stays False."""

    def __init__(self, connection: Any) -> None:
        # Under TLS, a peek does not detect that the connection was closed; the next write does.
        usable = isinstance(connection, socket.socket | gevent_socket.socket)
        self._connection = connection if usable and not isinstance(connection, ssl.SSLSocket) else None
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self._disconnected = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, Any]) -> ClientWatch:
        """Return the watch of a WSGI request's connection, if the server provides the connection."""
        return cls(environ.get("gunicorn.socket"))

    @property
    def disconnected(self) -> bool:
        """Whether the client is known to have disconnected. Costs one system call unless a greenlet watches."""
        if not self._disconnected and self._greenlet is None and self._connection is not None:
            self._disconnected = _is_closed(self._connection)
        return self._disconnected

    def next_output(
        self,
        receive: Callable[[float], Output | None],
        deadline: float = math.inf,
        timed_out: Callable[[], Exception] = TimeoutError,
        clock: Callable[[], float] = time.monotonic,
    ) -> Output:
        """Wait for the next output of the engine.

        `receive`: waits for at most this number of seconds; None: no output. `timed_out`: returns the error to raise at
        the deadline.

        Raises `ClientDisconnected` if the client disconnects.
        """
        while True:
            if self.disconnected:
                raise ClientDisconnected
            wait = min(_POLL_SECONDS, deadline - clock())
            if wait <= 0:
                raise timed_out()
            if (output := receive(wait)) is not None:
                return output

    def start(self, on_disconnect: Callable[[], None]) -> None:
        """Call `on_disconnect` from another greenlet as soon as the client disconnects.

        Works only if the server runs on gevent. Otherwise `disconnected` has to be polled.
        """
        if isinstance(self._connection, gevent_socket.socket):
            self._greenlet = gevent.spawn(self._watch, self._connection, on_disconnect)

    def stop(self) -> None:
        """Stop watching. The watch does not use the connection afterwards. Idempotent."""
        greenlet, self._greenlet = self._greenlet, None
        self._connection = None
        if greenlet is not None and greenlet is not gevent.getcurrent():
            greenlet.kill()

    def _watch(self, connection: gevent_socket.socket, on_disconnect: Callable[[], None]) -> None:
        try:
            more = bool(connection.recv(1, socket.MSG_PEEK))
        except OSError:
            more = False
        while more and not _is_closed(connection):
            # Unread bytes keep the connection readable, so waiting for it to become readable no longer helps.
            gevent.sleep(_POLL_SECONDS)
        self._disconnected = True
        on_disconnect()


def _is_closed(connection: Any) -> bool:
    """Return whether the peer has closed its side or the connection is broken. Does not block."""
    try:
        poll = _poll()
        poll.register(connection.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))
    except (OSError, ValueError):  # the descriptor is closed
        return True
