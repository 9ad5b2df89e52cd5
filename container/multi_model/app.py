"""HTTP API of the router: routes requests to models, and implements SageMaker's multi-model API."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flask import Flask, Response, after_this_request, g, request
from prometheus_client import CONTENT_TYPE_LATEST
from werkzeug.exceptions import HTTPException

from container.multi_model.errors import BadModel, ModelNotFound
from container.multi_model.forward import relay, send
from container.multi_model.load_request import name_and_url
from container.multi_model.manager import NOTHING_LOADED, ModelManager, listed
from container.multi_model.metrics import render
from container.multi_model.names import folder_of_url
from container.multi_model.served_model import ServedModel
from engines.errors import EngineError, InvalidRequest
from lmi_server.errors import ErrorForm, ErrorReply
from lmi_server.http import custom_attributes
from lmi_server.http.body import Bodies
from lmi_server.http.client_gone import ClientDisconnected, ClientWatch
from lmi_server.http.json_object import parse_object
from lmi_server.http.json_reply import json_response, unhealthy_response
from lmi_server.request_log import QUIET_PATHS, begin_record, client_gone, current_record
from lmi_server.values.show import as_json

_MOST_LISTED = 100
_INVOCATIONS = "/invocations"
_logger = logging.getLogger(__name__)


def make_app(
    manager: ModelManager,
    max_request_size: int,
    models_root: Path | None = None,
    throttle_status: int = 503,
) -> Flask:
    """Create the app.

    models_root: parent folder of models that can be loaded; None if models are configured. throttle_status: of the
    router's own replies on `/invocations` when too many bodies are in flight.
    """
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False  # a redirect would name the wrong scheme behind a proxy with TLS
    app.extensions["models"] = manager
    bodies = Bodies(max_request_size)
    started = int(time.time())

    def forward_request(choose: Callable[[bytes], str], target: str) -> Response:
        """Forward the current request. choose: returns the model's name, given the body."""
        if target == _INVOCATIONS:
            after_this_request(_repeat_custom_attributes)
        with bodies.raw(request) as data:
            body = bytes(data)
            query = request.query_string.decode("latin-1")
            full = f"{target}?{query}" if query else target
            watch, form = ClientWatch.from_environ(request.environ), ErrorForm.of_path(target)
            name = choose(body)
            with bodies.waiting(0 if manager.model(name).is_ready else len(body)):
                lease = manager.lease(name, lambda: watch.disconnected)
            sent = send(lease, request.method, full, dict(request.headers), body, watch)
        del body, data  # only bodies that are not sent yet count
        response = relay(sent, form)
        g.is_forwarded = True
        return response

    @app.get("/ping")
    @app.get("/health")
    def ping() -> Response:
        if manager.closing:
            return unhealthy_response({"reason": "the server is shutting down"})
        if manager.starting:
            return unhealthy_response({"reason": "models are being loaded"})
        return json_response({"status": "Healthy"})

    @app.post("/models/<name>/invoke")
    @app.post("/predictions/<name>")
    @app.post("/predictions/<name>/<_version>")
    def invoke(name: str, _version: str = "") -> Response:
        return forward_request(lambda body: name, _INVOCATIONS)

    @app.post(_INVOCATIONS)
    def invocations() -> Response:
        return forward_request(lambda body: _requested_model(manager, body, in_body=False), _INVOCATIONS)

    @app.post("/v1/chat/completions")
    @app.post("/v1/completions")
    def openai() -> Response:
        return forward_request(lambda body: _requested_model(manager, body, in_body=True), request.path)

    def openai_entry(model: ServedModel) -> dict[str, Any]:
        facts = {"object": "model", "created": started, "owned_by": "lmi", "root": str(model.folder)}
        return {"id": model.name, **facts}

    @app.get("/v1/models")
    def openai_models() -> Response:
        return json_response({"object": "list", "data": [openai_entry(each) for each in manager.models()]})

    @app.get("/v1/models/<name>")
    def openai_model(name: str) -> Response:
        return json_response(openai_entry(manager.model(name)))

    def entry(model: ServedModel) -> dict[str, Any]:
        return {"modelName": model.name, "modelUrl": str(model.folder), "status": model.state.value}

    @app.get("/models")
    def models() -> Response:
        page, token = _page([model.name for model in manager.models()])
        body: dict[str, Any] = {"models": [entry(model) for model in manager.models() if model.name in page]}
        return json_response({**body, "nextPageToken": token} if token else body)

    @app.get("/models/<name>")
    def model(name: str) -> Response:
        found = manager.model(name)
        failure = {"failure": found.failure} if found.failure else {}
        return json_response({**entry(found), "memoryBytes": manager.measured(found), **failure})

    if models_root is not None:

        @app.post("/models")
        def load() -> Response:
            with bodies.raw(request) as data:
                fields = parse_object(data) if data else request.args
            name, url = name_and_url(fields)
            manager.load(name, folder_of_url(url, models_root))
            return json_response({"status": f'Model "{name}" registered.'})

        @app.delete("/models/<name>")
        def unload(name: str) -> Response:
            manager.unload(name)
            return json_response({"status": f'Model "{name}" unregistered.'})

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(render(manager), content_type=CONTENT_TYPE_LATEST)

    @app.get("/version")
    def get_version() -> Response:
        return json_response({"version": version("lmi-server")})

    _register_replies(app, max_request_size, throttle_status)
    return app


def _register_replies(app: Flask, max_request_size: int, throttle_status: int) -> None:
    @app.before_request
    def begin() -> None:
        begin_record(request.headers)

    @app.after_request
    def end(response: Response) -> Response:
        record, path = current_record(), ascii(request.path)[1:-1][:200]
        response.headers.setdefault("x-request-id", record.label)
        response.headers.setdefault("Cache-Control", "no-cache")
        if not g.get("is_forwarded") and request.path not in QUIET_PATHS:  # the models log forwarded requests
            response.call_on_close(partial(record.log, request.method, path, response.status_code))
        return response

    app.register_error_handler(ClientDisconnected, client_gone)

    @app.errorhandler(Exception)
    def on_error(error: Exception) -> Response:
        if not isinstance(error, EngineError | HTTPException):
            _logger.exception("%s unexpected error", current_record().id, exc_info=error)
        managed = re.fullmatch(r"/models(/[^/]*)?", request.path)
        form = ErrorForm.ADMIN if managed else ErrorForm.of_path(request.path)
        paths = [rule.rule for rule in app.url_map.iter_rules() if not rule.arguments]
        reply = ErrorReply.from_exception(error, max_request_size, request.path, paths)
        current_record().finish = reply.kind
        return reply.response(form, throttle_status)


def _repeat_custom_attributes(response: Response) -> Response:
    """Return the request's custom attributes with a response of the router. A model returns them itself."""
    attributes = request.headers.get(custom_attributes.HEADER)
    if attributes is not None and custom_attributes.VALID.fullmatch(attributes) and not g.get("is_forwarded"):
        response.headers[custom_attributes.HEADER] = attributes
    return response


def _requested_model(manager: ModelManager, body: bytes, in_body: bool) -> str:
    """Return the model that a request names in its query or custom attributes, or as `model` in its body.

    in_body: look in the body only. If there is only one model, requests need not name it.

    Raises BadModel, ModelNotFound, InvalidRequest.
    """
    names = [model.name for model in manager.models()]
    if not in_body:
        if name := request.args.get("model_name"):
            return name
        attributes = custom_attributes.pairs(request.headers.get(custom_attributes.HEADER, ""))
        if (name := dict(attributes).get("model_name")) is not None:
            return name
    if len(names) == 1:
        return names[0]
    if in_body or b'"model"' in body:
        try:
            name = parse_object(body).get("model")
        except InvalidRequest:
            if in_body or request.is_json:
                raise
            name = None  # a handler accepts any bytes
        if isinstance(name, str):
            return name
    if not names:
        raise ModelNotFound(NOTHING_LOADED)
    field = (
        "model" if in_body else "model_name (in the query or in custom attributes) or model (in a JSON body)"
    )
    raise BadModel(f"{field}: required because several models are served; allowed: {listed(names)}")


def _page(names: Sequence[str]) -> tuple[set[str], str]:
    """Return the names on the requested page, and the token of the next page. names: sorted."""
    text = request.args.get("limit", str(_MOST_LISTED))
    limit = int(text) if re.fullmatch(r"\d{1,9}", text) else 0
    if not 1 <= limit <= _MOST_LISTED:
        raise BadModel(f"limit: given {as_json(text)}; accepted: 1 to {_MOST_LISTED}")
    rest = [name for name in names if name > request.args.get("next_page_token", "")]
    page = rest[:limit]
    return set(page), page[-1] if len(rest) > len(page) else ""
