"""Passes a request on to a model's server, and its answer back, piece by piece."""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
from collections.abc import Iterator, Mapping

from flask import Response
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from container.multi_model.manager import ModelLease
from container.run.local_server import HOST
from engines.errors import EngineDied
from lmi_server.errors import ErrorForm, ErrorReply
from lmi_server.http.client_gone import ClientWatch
from lmi_server.http.framing import JSON_LINES, SSE

_PIECE_BYTES = 64 << 10
_HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "proxy-connection", "te", "trailer"} | {
    "transfer-encoding",
    "upgrade",
}
"""Headers of one connection, which are not passed on."""
_OWN = {"date", "server"}
"""Headers that the front writes itself."""
_FAILURES = (OSError, HTTPError, http.client.HTTPException)
_logger = logging.getLogger(__name__)


def forward(
    lease: ModelLease,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    watch: ClientWatch,
    form: ErrorForm,
) -> Response:
    """Send a request to the server of a lease, which ends with the answer or when the client leaves.

    target: path and query; watch: of the client's connection; form: of the record that ends a broken stream.
    Each request has a connection of its own: a kept one might be closed just when a request is sent.

    Raises EngineDied.
    """
    connection = HTTPConnection(HOST, lease.server.port)

    connected: list[socket.socket] = []  # `connection` may forget its socket before the answer is read

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            for each in connected:
                each.shutdown(socket.SHUT_RDWR)

    def end() -> None:
        watch.stop()
        hang_up()
        connection.close()
        lease.release()

    try:
        connection.connect()
        connected.append(connection.sock)
        passed_on = {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
        connection.request(method, target, body, passed_on, preload_content=False, decode_content=False)
        watch.start(hang_up)
        answer = connection.getresponse()
    except BaseException as error:
        end()
        if isinstance(error, _FAILURES):
            raise EngineDied("the model's server has ended") from error
        raise
    left_out = _OWN | _HOP_BY_HOP - {"content-length"}
    passed_back = [(name, value) for name, value in answer.headers.items() if name.lower() not in left_out]
    response = Response(_pieces(answer, watch, form), answer.status, passed_back)
    response.call_on_close(end)
    return response


def _pieces(answer: BaseHTTPResponse, watch: ClientWatch, form: ErrorForm) -> Iterator[bytes]:
    """The body of an answer. A stream that breaks off ends with an error record."""
    try:
        yield from answer.stream(_PIECE_BYTES, decode_content=False)
    except _FAILURES as error:
        if watch.left:
            return
        _logger.warning("an answer broke off: %s", error)
        content_type = answer.headers.get("Content-Type", "").partition(";")[0]
        framing = {each.content_type.partition(";")[0]: each for each in (JSON_LINES, SSE)}.get(content_type)
        if framing is None:
            raise
        reply = ErrorReply.of(EngineDied("the model's server has ended"))
        yield framing.frame(reply.body(form)).encode()
