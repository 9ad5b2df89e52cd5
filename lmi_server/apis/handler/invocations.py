"""`POST /invocations`, its other names and OpenAI's paths, all answered by a user's handler."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from flask import Blueprint, Response, request

from engines.base import HandlerEngine
from engines.core import AbortReason
from engines.errors import EngineError, error_from_kind
from engines.invocations import AnswerHead, Invocation, InvocationOutput
from lmi_server.apis.base import ServerContext
from lmi_server.apis.handler.request import invocation
from lmi_server.errors import ErrorForm, ErrorReply
from lmi_server.http.client_gone import ClientDisconnected, ClientWatch
from lmi_server.http.framing import JSON_LINES, SSE, UNBUFFERED
from lmi_server.request_log import RequestRecord, current_record

_logger = logging.getLogger(__name__)

_SERVER_HEADERS = {"connection", "content-length", "date", "keep-alive", "server", "trailer"} | {
    "transfer-encoding",
    "upgrade",
}
"""Response headers that only the server sets."""
_WITHOUT_BODY = (204, 205, 304)


def api(context: ServerContext) -> Blueprint:
    """Create the routes. Raises `TypeError` if the engine cannot run a handler."""
    engine = context.engine
    if not isinstance(engine, HandlerEngine):
        raise TypeError(f"{type(engine).__name__} cannot run a handler")
    blueprint = Blueprint("handler", __name__)

    @blueprint.post("/invocations")
    @blueprint.post("/predictions/<model>")
    @blueprint.post("/predictions/<model>/<version>")
    @blueprint.post("/models/<model>/invoke")
    @blueprint.post("/v1/completions")
    @blueprint.post("/v1/chat/completions")
    def invoke(**labels: str) -> Response:
        return _answer(context, engine)

    return blueprint


def _answer(context: ServerContext, engine: HandlerEngine) -> Response:
    """Answer the current request.

    Raises `EngineError` for every failure before the handler answers, and `ClientDisconnected`.
    """
    record = current_record()
    context.require_ready()
    with context.bodies.raw(request) as data:
        call = invocation(request, data, record)
        pieces = _AnswerPieces(engine, call, ClientWatch.from_environ(request.environ))
    del call, data  # the dispatcher has its own copy
    try:
        first = next(pieces)
        if first.head is None:
            raise error_from_kind(first.error_kind, first.error_message)
        record.finish = "handler"
        if first.finished:
            pieces.close()
            return _response(first.head, first.body)
        response = _response(first.head, _stream(first, pieces, record, request.path))
        response.headers.setdefault(UNBUFFERED, "no")
        # A generator that was never started does not run its `finally` block.
        response.call_on_close(pieces.close)
    except BaseException:
        pieces.close()
        raise
    return response


class _AnswerPieces:
    """Pieces of one answer. The caller must call `close`."""

    def __init__(self, engine: HandlerEngine, call: Invocation, client: ClientWatch) -> None:
        self._engine = engine
        self._id = call.id
        self._client = client
        self._open = True
        self._stream = engine.invoke(call)
        client.start(self._abort)

    def __next__(self) -> InvocationOutput:
        """Wait for the next piece. Raises `ClientDisconnected` if the client disconnects."""
        output = self._client.next_output(self._stream.next)
        self._open = not output.finished
        return output

    def close(self) -> None:
        """Abort the request in the engine, unless it is already answered. Idempotent."""
        self._client.stop()
        self._abort()

    def _abort(self) -> None:
        if self._open:
            self._open = False
            self._engine.abort(self._id, AbortReason.CLIENT_LEFT)


def _stream(
    first: InvocationOutput, pieces: _AnswerPieces, record: RequestRecord, path: str
) -> Iterator[bytes]:
    """Yield the bodies of all pieces. A failure becomes the last record; nothing is raised."""
    record.finish = "client_gone"  # unless the stream reaches its end
    output = first
    try:
        while True:
            if output.error_kind:
                raise error_from_kind(output.error_kind, output.error_message)
            if output.last:
                record.finish = "handler"
            if output.body:
                yield output.body
            if output.last:
                return
            output = next(pieces)
    except ClientDisconnected:
        return
    except EngineError as error:
        record.finish = error.kind
        yield _last_record(first.head, path, error)
    finally:
        pieces.close()


def _last_record(head: AnswerHead | None, path: str, error: EngineError) -> bytes:
    """Return the record that ends a failed stream: an event on OpenAI's paths and in streams of events, else a line."""
    form = ErrorForm.of_path(path)
    headers = {name.lower(): value.lower() for name, value in (head.headers if head else ())}
    sends_events = headers.get("content-type", "").startswith("text/event-stream")
    framing = SSE if sends_events or form is ErrorForm.OPENAI else JSON_LINES
    return framing.frame(ErrorReply.from_exception(error).body(form)).encode()


def _response(head: AnswerHead, body: bytes | Iterator[bytes]) -> Response:
    if head.status in _WITHOUT_BODY:
        body = b""
    response = Response(body, f"{head.status} {head.message}".rstrip())
    del response.headers["Content-Type"]  # only the handler sets it, as in LMI
    for name, value in head.headers:
        if name.lower() not in _SERVER_HEADERS:
            response.headers[name] = value
    return response
