"""Forward a request to a model's server, and stream the response back."""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from flask import Response
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from container.multi_model.manager import ModelLease
from container.run.local_server import HOST
from engines.errors import EngineDied
from lmi_server.errors import ErrorForm, ErrorReply
from lmi_server.http.client_gone import ClientDisconnected, ClientWatch
from lmi_server.http.framing import JSON_LINES, SSE

_PIECE_BYTES = 64 << 10
_HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer"} | {
    "transfer-encoding",
    "upgrade",
}
"""Headers of a single connection, which are not forwarded."""
_OWN = {"date", "server"}
"""Headers that the router writes itself."""
_FAILURES = (OSError, HTTPError, http.client.HTTPException)
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SentRequest:
    """A request that a lease's server is processing. It ends with the response or when the client disconnects."""

    connection: HTTPConnection
    lease: ModelLease
    watch: ClientWatch
    sock: socket.socket | None = None
    """The connection's socket, which `connection` may drop before the response is read."""

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            if self.sock is not None:
                self.sock.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self.watch.stop()
        self.hang_up()
        self.connection.close()
        self.lease.release()


def send(
    lease: ModelLease, method: str, target: str, headers: Mapping[str, str], body: bytes, watch: ClientWatch
) -> SentRequest:
    """Send a request to a lease's server. `relay` must follow.

    target: path and query. watch: notices when the client disconnects. Each request has its own connection: a
    kept-alive one might be closed just when a request is sent.

    Raises EngineDied, ClientDisconnected.
    """
    connection = HTTPConnection(HOST, lease.server.port)
    sent = SentRequest(connection, lease, watch)
    with _ended_on_failure(sent):
        if watch.disconnected:  # while its model was loaded
            raise ClientDisconnected
        connection.connect()
        sent.sock = connection.sock
        passed_on = {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
        connection.request(method, target, body, passed_on, preload_content=False, decode_content=False)
        watch.start(sent.hang_up)
    return sent


def relay(sent: SentRequest, form: ErrorForm) -> Response:
    """Return the response to a request. form: of the error that ends a broken stream.

    Raises EngineDied, ClientDisconnected.
    """
    with _ended_on_failure(sent):
        answer = sent.connection.getresponse()
    left_out = _OWN | _HOP_BY_HOP - {"content-length"}
    passed_back = [(name, value) for name, value in answer.headers.items() if name.lower() not in left_out]
    status = f"{answer.status} {answer.reason or ''}".rstrip()
    response = Response(_pieces(answer, sent.watch, form), status, passed_back)
    if "Content-Type" not in answer.headers:
        del response.headers["Content-Type"]  # Flask's default
    response.call_on_close(sent.end)
    return response


@contextmanager
def _ended_on_failure(sent: SentRequest) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        client_gone = sent.watch.disconnected
        sent.end()
        if isinstance(error, _FAILURES):
            raise (
                ClientDisconnected if client_gone else EngineDied("the model's server has exited")
            ) from error
        raise


def _pieces(answer: BaseHTTPResponse, watch: ClientWatch, form: ErrorForm) -> Iterator[bytes]:
    """Yield the body of a response. A stream that breaks off ends with an error record."""
    try:
        yield from answer.stream(_PIECE_BYTES, decode_content=False)
    except _FAILURES as error:
        if watch.disconnected:
            return
        _logger.warning("response interrupted: %s", error)
        content_type = answer.headers.get("Content-Type", "").partition(";")[0]
        framing = {each.content_type.partition(";")[0]: each for each in (JSON_LINES, SSE)}.get(content_type)
        if framing is None:
            raise
        reply = ErrorReply.from_exception(EngineDied("the model's server has exited"))
        yield framing.frame(reply.body(form)).encode()
