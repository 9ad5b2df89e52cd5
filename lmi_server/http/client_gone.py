"""Whether the client is still there. WSGI tells nobody that it left before something is written to it.

Under gunicorn the connection stands in the WSGI environment. It is readable when the client closed it, or when it
sent more (a pipelined request), which a look without taking (MSG_PEEK) tells apart.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import gevent
from gevent import monkey
from gevent import socket as gevent_socket

_HANGUP_POLL_SECONDS = 0.25
# Under gevent `select` has no poll, and this one never waits, so the plain one serves both.
_poll: Any = monkey.get_original("select", "poll")


class ClientWatch:
    """Watches one connection from `start` to `stop`. Without a connection to watch, `left` stays False."""

    def __init__(self, connection: Any) -> None:
        # TLS hides the end of a connection from a peek; the next write notices it.
        usable = isinstance(connection, socket.socket | gevent_socket.socket)
        self._connection = connection if usable and not isinstance(connection, ssl.SSLSocket) else None
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self._left = False

    @classmethod
    def of(cls, environ: Mapping[str, Any]) -> ClientWatch:
        """The watch over a WSGI request's connection, where the server tells which it is."""
        return cls(environ.get("gunicorn.socket"))

    @property
    def left(self) -> bool:
        """Whether the client is known to be gone. Costs nothing where a greenlet watches, else one system call."""
        if not self._left and self._greenlet is None and self._connection is not None:
            self._left = _hung_up(self._connection)
        return self._left

    def start(self, on_left: Callable[[], None]) -> None:
        """Call `on_left` from a greenlet of its own as soon as the client is gone.

        Only where the server runs on gevent; elsewhere whoever waits looks at `left`.
        """
        if isinstance(self._connection, gevent_socket.socket):
            self._greenlet = gevent.spawn(self._watch, self._connection, on_left)

    def stop(self) -> None:
        """Let go of the connection; when this returns, nothing of the watch touches it. Idempotent."""
        greenlet, self._greenlet = self._greenlet, None
        self._connection = None
        if greenlet is not None and greenlet is not gevent.getcurrent():
            greenlet.kill()

    def _watch(self, connection: gevent_socket.socket, on_left: Callable[[], None]) -> None:
        try:
            more = bool(connection.recv(1, socket.MSG_PEEK))
        except OSError:
            more = False
        while more and not _hung_up(connection):
            # Bytes lie there, so readability says nothing any more.
            gevent.sleep(_HANGUP_POLL_SECONDS)
        self._left = True
        on_left()


def _hung_up(connection: Any) -> bool:
    """Whether the peer closed its side, or the connection is broken. Does not wait."""
    try:
        poll = _poll()
        poll.register(connection.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))
    except (OSError, ValueError):  # the descriptor is closed
        return True
