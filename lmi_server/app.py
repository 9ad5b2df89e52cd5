"""The Flask application: blueprints and error handlers, nothing else."""

from __future__ import annotations

import logging

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import NotFound as UnknownPath

from engines.base import Engine
from engines.capabilities import CAPABILITIES
from engines.errors import EngineError
from lmi_server.apis import APIS, HANDLER_APIS
from lmi_server.apis.base import ApiContext, ServerContext
from lmi_server.apis.parameters.model_defaults import openai_defaults
from lmi_server.config import WebConfig
from lmi_server.errors import ErrorForm, ErrorReply, NotFound, status_of
from lmi_server.generation.formatter import Formatter
from lmi_server.http.body import Bodies
from lmi_server.http.client_gone import CLIENT_GONE_STATUS, ClientDisconnected
from lmi_server.metrics import Metrics
from lmi_server.request_log import QUIET_PATHS, begin_record, client_gone, current_record
from lmi_server.text.tokenizer import TextModel

_logger = logging.getLogger(__name__)


def create_app(
    config: WebConfig, engine: Engine, text: TextModel | None, formatter: Formatter | None = None
) -> Flask:
    """Create the web application for a running engine. `text` is None with a user's handler, which receives bytes."""
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False  # a redirect would name the wrong scheme behind a proxy with TLS
    bodies = Bodies(config.server.max_request_size)
    metrics = Metrics()
    if text is None:
        for handler_api in HANDLER_APIS:
            app.register_blueprint(handler_api(ServerContext(config, engine, metrics, bodies)))
    else:
        capabilities = CAPABILITIES[config.engine]
        defaults = openai_defaults(config)
        context = ApiContext(config, engine, metrics, bodies, capabilities, text, defaults, formatter)
        for api in APIS:
            app.register_blueprint(api(context))
    _register_errors(app, config, needs_admin_token=text is not None and not config.admin_token_digest)
    _register_records(app, metrics)
    return app


def _register_errors(app: Flask, config: WebConfig, *, needs_admin_token: bool) -> None:
    """`needs_admin_token`: whether the admin API is missing only because no admin token is set."""
    paths = [rule.rule for rule in app.url_map.iter_rules() if not rule.arguments]
    app.register_error_handler(ClientDisconnected, client_gone)

    @app.errorhandler(Exception)
    def on_error(error: Exception) -> Response:
        record = current_record()
        if not isinstance(error, EngineError | HTTPException):
            _logger.exception("%s unexpected error", record.id, exc_info=error)
        if isinstance(error, UnknownPath) and needs_admin_token and request.path.startswith("/admin/"):
            error = NotFound("no such path; the admin API needs LMI_ADMIN_TOKEN in the server's environment")
        problem = ErrorReply.from_exception(error, config.server.max_request_size, request.path, paths)
        record.finish = problem.kind
        return problem.response(ErrorForm.of_path(request.path), config.server.throttle_error_http_code)


def _counted_status(status: int, finish: str, path: str) -> int:
    """Return the status that counts for a request: a stream may fail after its status has been sent."""
    if status >= 400:
        return status
    if finish == "client_gone":
        return CLIENT_GONE_STATUS
    return status_of(finish, ErrorForm.of_path(path)) or status


def _register_records(app: Flask, metrics: Metrics) -> None:
    @app.before_request
    def begin() -> None:
        begin_record(request.headers)

    @app.after_request
    def end(response: Response) -> Response:
        record = current_record()
        response.headers["x-request-id"] = record.label
        response.headers.setdefault("Cache-Control", "no-cache")
        method, path = request.method, request.path
        route = request.url_rule.rule if request.url_rule is not None else "other"

        @response.call_on_close
        def done() -> None:
            metrics.count_request(route, _counted_status(response.status_code, record.finish, path))
            if path not in QUIET_PATHS:
                record.log(method, route if route != "other" else ascii(path)[:200], response.status_code)

        return response
