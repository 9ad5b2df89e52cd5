"""Answer requests before the web server runs: 503 and the reason, while the model's files are prepared."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from typing import Self

from engines.errors import Unavailable

_QUIET_SECONDS = 1.0
"""Time in which clients wait unanswered, because the preparation of a model that is on this disk takes no longer. It is
less than the 2 s for which SageMaker waits for `/ping`."""
_MAX_CONNECTIONS = 64
_PAUSE_SECONDS = 0.1
"""Time until the next try if no more connections can be accepted."""
_CLIENT_SECONDS = 10.0
"""Time for a client to send its request and to read the response."""
_MAX_LINE_BYTES = 8190
_MAX_BYTES = 64 << 20
"""Bytes of a request that are read and dropped. Closing a connection with unread data could destroy the response."""
_PIECE_BYTES = 64 * 1024
_HEALTH_PATHS = ("/ping", "/health")


class EarlyAnswers:
    """Answers the requests that arrive on the listening socket with 503. A context manager.

    At its end no further connection is accepted: those that wait are left to the web server. Connections accepted
    before are answered by threads that may run on for `_CLIENT_SECONDS`.
    """

    def __init__(self, listener: socket.socket, quiet_seconds: float = _QUIET_SECONDS) -> None:
        """quiet_seconds: time until the first answer."""
        self.reason = "the server is starting"
        """Why the server is not ready."""
        self._listener = listener
        self._listener.setblocking(False)  # a client may disconnect before it is accepted
        self._quiet_seconds = quiet_seconds
        self._end_read, self._end_write = os.pipe()
        self._thread = threading.Thread(target=self._accept, name="early-answers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._end_write)  # makes the other end readable
        self._thread.join()
        os.close(self._end_read)

    def _has_ended(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end. Returns whether it has come."""
        return bool(select.select([self._end_read], [], [], seconds)[0])

    def _accept(self) -> None:
        if self._has_ended(self._quiet_seconds):
            return
        threads: list[threading.Thread] = []
        while True:
            select.select([self._end_read, self._listener.fileno()], [], [])
            threads = [thread for thread in threads if thread.is_alive()]
            is_full = len(threads) >= _MAX_CONNECTIONS
            if self._has_ended(_PAUSE_SECONDS if is_full else 0.0):
                return
            if is_full:
                continue
            try:
                connection = self._listener.accept()[0]
                thread = threading.Thread(target=self._answer, args=(connection,), daemon=True)
                thread.start()
            except (OSError, RuntimeError):  # the client has left, or no file or thread is left
                time.sleep(_PAUSE_SECONDS)
            else:
                threads.append(thread)

    def _answer(self, connection: socket.socket) -> None:
        deadline = time.monotonic() + _CLIENT_SECONDS
        with connection, contextlib.suppress(OSError):
            line = b""
            while b"\n" not in line and len(line) <= _MAX_LINE_BYTES:
                if not (piece := _receive(connection, deadline)):
                    break
                line += piece
            connection.sendall(response(line.partition(b"\n")[0], self.reason))
            connection.shutdown(socket.SHUT_WR)
            num_bytes = 0
            while num_bytes < _MAX_BYTES and (piece := _receive(connection, deadline)):
                num_bytes += len(piece)


def _receive(connection: socket.socket, deadline: float) -> bytes:
    """Return the next bytes; none after the client has closed its side. Raises TimeoutError at the deadline."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    connection.settimeout(seconds)
    return connection.recv(_PIECE_BYTES)


def response(request_line: bytes, reason: str) -> bytes:
    """Return the HTTP response to a request, which only depends on its first line."""
    # Imported here because the web framework takes a while to import, and most starts need no early answer.
    from lmi_server.errors import ErrorForm, ErrorReply
    from lmi_server.http.json_reply import unhealthy_response

    method, _, target = request_line.decode("latin-1").partition(" ")
    path = target.partition(" ")[0].partition("?")[0]
    if path in _HEALTH_PATHS:
        reply = unhealthy_response({"state": "starting", "reason": reason})
    else:
        reply = ErrorReply.from_exception(Unavailable(reason)).response(ErrorForm.of_path(path))
    reply.headers["Cache-Control"] = "no-cache"
    reply.headers["Connection"] = "close"
    body = b"" if method == "HEAD" else reply.get_data()
    return f"HTTP/1.1 {reply.status}\r\n{reply.headers}".encode("latin-1") + body
