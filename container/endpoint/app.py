"""HTTP server for requests that boto3's clients `sagemaker` and `sagemaker-runtime` send, and for /metrics.json."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Mapping
from urllib.parse import urlsplit

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from container.endpoint import figures
from container.endpoint.api import ApiError, refused
from container.endpoint.asynchronous import AsyncInvocations
from container.endpoint.container_call import MAX_BODY_BYTES
from container.endpoint.platform import Platform
from container.endpoint.runtime import CHAT, STREAM, WHOLE, Runtime
from container.measure.output import plain_json
from container.run import peer
from container.run.launch import base_url

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Names of the loopback interface."""
_OPERATIONS = {"invocations": WHOLE, "invocations-response-stream": STREAM}
_PIECE_BYTES = 1 << 20
_MAX_DISCARDED_BYTES = 1 << 30
_log = logging.getLogger(__name__)


def make_app(platform: Platform, runtime: Runtime, asynchronous: AsyncInvocations, host: str) -> Flask:
    """Create the app. host: the listening address; on loopback, requests for other host names are refused."""
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    @app.before_request
    def only_for_this_host() -> None:
        """Prevent DNS rebinding, by which a web page in a local browser reaches this port under its own name, and
        requests of other users, who could run programs as this one."""
        if host not in LOCAL:
            return
        if urlsplit(f"//{request.host}").hostname not in LOCAL:
            raise refused(
                f"Host: not a name of this machine (got {request.host}); allowed: {', '.join(LOCAL)}"
            )
        client = (str(request.environ["REMOTE_ADDR"]), int(request.environ["REMOTE_PORT"]))
        if not peer.is_trusted(*client, peer.ESTABLISHED):
            raise refused("only processes of the user who runs lmi endpoint may call it")

    @app.post("/")
    def control() -> Response:
        operation = request.headers.get("X-Amz-Target", "").removeprefix("SageMaker.")
        try:
            params = json.loads(request.get_data() or b"{}")
        except (ValueError, RecursionError) as error:
            raise ApiError("SerializationException", f"the body is not JSON: {error}") from error
        return _json(200, platform.call(operation, params))

    @app.post("/endpoints/<name>/<any('invocations','invocations-response-stream'):kind>")
    def invoke(name: str, kind: str) -> Response:
        endpoint, operation = platform.endpoint(name), _OPERATIONS[kind]
        headers, body = runtime.invoke(endpoint, operation, request.headers, request.get_data())
        return Response(body, headers=headers)

    @app.post("/endpoints/<name>/async-invocations")
    def invoke_async(name: str) -> Response:
        headers, number = asynchronous.invoke(platform.endpoint(name), request.headers, request.get_data())
        return _json(202, {"InferenceId": number}, headers)

    @app.post(f"/endpoints/<name>/openai{CHAT}")
    def chat(name: str) -> Response:
        try:
            headers, call = runtime.chat(platform.endpoint(name), request.headers, request.get_data())
        except ApiError as error:
            return Response(json.dumps(error.openai_body()), error.status, content_type="application/json")
        response = Response(call.unframed(), headers=headers)
        response.call_on_close(call.close)
        return response

    @app.get("/metrics.json")
    def show_figures() -> Response:
        served = platform.figures()
        variants = [one.values() for one in served]
        return _json(200, {"variants": variants, "verdicts": figures.verdicts(served)})

    @app.errorhandler(ApiError)
    def refuse(error: ApiError) -> Response:
        return _json(error.status, error.body(), {"x-amzn-ErrorType": error.kind} if error.kind else {})

    @app.errorhandler(HTTPException)
    def no_such_operation(error: HTTPException) -> Response:
        if isinstance(error, RequestEntityTooLarge):
            _discard_body()
            return refuse(ApiError("", f"HTTP content length exceeded {MAX_BODY_BYTES} bytes.", 413))
        return refuse(
            ApiError("UnknownOperationException", f"{request.method} {request.path}: {error.name}", 404)
        )

    @app.errorhandler(Exception)
    def internal(error: Exception) -> Response:
        _log.exception("internal failure", exc_info=error)
        return refuse(ApiError("InternalFailure", "lmi endpoint failed; see its log", 500))

    return app


def _discard_body() -> None:
    """Read the rest of the request. Otherwise the client would get a connection reset instead of the response."""
    left = min(request.content_length or 0, _MAX_DISCARDED_BYTES)
    while left > 0 and (data := request.environ["wsgi.input"].read(min(left, _PIECE_BYTES))):
        left -= len(data)


def _json(status: int, values: object, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(plain_json(values))
    return Response(text, status, headers, content_type="application/x-amz-json-1.1")


class _Handler(WSGIRequestHandler):
    disable_nagle_algorithm = True
    """Send each part of a stream at once."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Do not log each request."""


class EndpointServer:
    """Serves an app on a listening socket, from `start` to `close`, with a thread for each request."""

    def __init__(self, app: Flask, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        with listener:
            self._server: BaseWSGIServer = make_server(
                host, port, app, threaded=True, request_handler=_Handler, fd=listener.fileno()
            )
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self.url = base_url(host, port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop accepting requests."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
