"""Error replies: one table maps each kind of error to its HTTP status and error type in each dialect.

The text of an unexpected exception is never sent to a client. It is logged, and the client receives 'internal error'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from flask import Response
from werkzeug.exceptions import HTTPException

from engines.errors import EngineError, InvalidRequest
from lmi_server.http.json_reply import json_response
from lmi_server.values.nearest import nearest
from lmi_server.values.show import as_json

STREAM_ERROR_CODE = 424
"""`code` in the last record of a failed stream on `/invocations`. The HTTP status was already sent."""


class InvalidField(InvalidRequest):
    """A field of the request body is invalid. The message starts with the name of the field, cut to 200 characters."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field[:200]
        super().__init__(f"{self.field}: {problem}")


class ContextTooLong(InvalidField):
    """The prompt and the output together exceed the model's context length."""

    kind = "context_length_exceeded"


class NotFound(EngineError):
    """The path does not exist."""

    kind = "not_found"


class Unauthorized(EngineError):
    """The request lacks the token that its path requires."""

    kind = "unauthorized"


class BodyTooSlow(EngineError):
    """The client did not send the request body in time."""

    kind = "body_too_slow"


class UnsupportedMediaType(EngineError):
    """The request headers declare a body that is not JSON."""

    kind = "unsupported_media_type"


class ErrorForm(Enum):
    """Dialect of an error reply. It determines the error body and the HTTP status."""

    LMI = "lmi"
    OPENAI = "openai"
    ADMIN = "admin"
    """LMI's error body with the HTTP statuses of `OPENAI`."""

    @classmethod
    def of_path(cls, path: str) -> ErrorForm:
        if path.startswith("/admin/"):
            return cls.ADMIN
        return cls.OPENAI if path.startswith("/v1/") else cls.LMI


@dataclass(frozen=True, slots=True)
class _ErrorRow:
    lmi_status: int
    openai_status: int
    openai_type: str
    retry_after: int | None = None
    """Value of the `Retry-After` header, in seconds."""
    challenge: str | None = None
    """Value of the `WWW-Authenticate` header."""
    final: bool = False
    """Whether a retry would only repeat the work, so clients must not retry. OpenAI's clients retry other 5xx."""


_TABLE: dict[str, _ErrorRow] = {
    "invalid_request": _ErrorRow(424, 400, "invalid_request_error"),
    "context_length_exceeded": _ErrorRow(424, 400, "invalid_request_error"),
    "overloaded": _ErrorRow(503, 429, "rate_limit_error", retry_after=1),
    "unavailable": _ErrorRow(503, 503, "server_error", retry_after=5),
    "deadline_exceeded": _ErrorRow(504, 504, "server_error", final=True),
    "request_failed": _ErrorRow(424, 500, "server_error", final=True),
    "engine_died": _ErrorRow(503, 503, "server_error", retry_after=10),
    "bad_model": _ErrorRow(400, 400, "invalid_request_error"),
    "model_not_found": _ErrorRow(404, 404, "invalid_request_error"),
    "already_loaded": _ErrorRow(409, 409, "invalid_request_error"),
    "out_of_memory": _ErrorRow(507, 507, "server_error"),
    "bad_http": _ErrorRow(400, 400, "invalid_request_error"),
    "unauthorized": _ErrorRow(401, 401, "authentication_error", challenge="Bearer"),
    "not_found": _ErrorRow(404, 404, "invalid_request_error"),
    "method_not_allowed": _ErrorRow(405, 405, "invalid_request_error"),
    "body_too_slow": _ErrorRow(408, 408, "invalid_request_error"),
    "too_large": _ErrorRow(413, 413, "invalid_request_error"),
    "unsupported_media_type": _ErrorRow(415, 415, "invalid_request_error"),
    "internal": _ErrorRow(500, 500, "server_error"),
}

_HTTP_KINDS = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}


_CHAT_INSTEAD = "not supported; use /v1/chat/completions"
_UNDER_V1 = "no such path; OpenAI's API is under /v1"
_OTHER_PATHS = {
    "/v1/responses": _CHAT_INSTEAD,
    "/v1/messages": _CHAT_INSTEAD,
    "/v1/embeddings": "embeddings are not supported",
    "/chat/completions": _UNDER_V1,
    "/completions": _UNDER_V1,
    "/models": _UNDER_V1,
    "/generate": "TGI's API is not supported; use /invocations",
    "/generate_stream": "TGI's API is not supported; use /invocations with the header Accept: text/event-stream",
}
"""Errors for paths that clients of other servers use."""
_MAIN_PATHS = ("/invocations", "/v1/chat/completions", "/v1/completions", "/v1/models", "/ping", "/metrics")
"""Paths that the message of an unknown path lists."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as the client receives it."""

    kind: str
    message: str
    field: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_exception(
        cls, error: Exception, max_request_size: int = 0, path: str = "", paths: Sequence[str] = ()
    ) -> ErrorReply:
        """Create the reply for an exception. An exception that is not meant for clients becomes 'internal error'.

        path: the request's path, for the message of a path that does not exist.
        paths: the server's paths, which that message suggests.
        """
        if isinstance(error, EngineError):
            kind = error.kind if error.kind in _TABLE else "request_failed"
            return cls(kind, str(error), error.field if isinstance(error, InvalidField) else None)
        if isinstance(error, HTTPException):
            return _from_http_exception(error, max_request_size, path, paths)
        return cls("internal", "internal error; the server's log has the details")

    def status(self, form: ErrorForm, throttle_status: int = 503) -> int:
        """Return the HTTP status. `throttle_status` is the status for a full queue on `/invocations`."""
        row = _TABLE[self.kind]
        if form is not ErrorForm.LMI:
            return row.openai_status
        return throttle_status if self.kind == "overloaded" else row.lmi_status

    def response(self, form: ErrorForm, throttle_status: int = 503) -> Response:
        """Create the complete HTTP response."""
        status = self.status(form, throttle_status)
        response = json_response(self.body(form, status), status)
        row = _TABLE[self.kind]
        if row.retry_after is not None:
            response.headers["Retry-After"] = str(row.retry_after)
        if row.challenge is not None:
            response.headers["WWW-Authenticate"] = row.challenge
        if row.final and form is ErrorForm.OPENAI:
            response.headers["X-Should-Retry"] = "false"
        for name, value in self.headers:
            response.headers[name] = value
        return response

    def body(self, form: ErrorForm, code: int = STREAM_ERROR_CODE) -> dict[str, Any]:
        """Return the JSON body. The default `code` is for the last record of a stream."""
        if form is not ErrorForm.OPENAI:
            return {"error": self.message, "code": code}
        error = {
            "message": self.message,
            "type": _TABLE[self.kind].openai_type,
            "param": self.field,
            "code": self.kind,
        }
        return {"error": error}


def status_of(kind: str, form: ErrorForm) -> int | None:
    """Return the HTTP status of a kind of error; None for anything else."""
    return ErrorReply(kind, "").status(form) if kind in _TABLE else None


def _from_http_exception(
    error: HTTPException, max_request_size: int, path: str, paths: Sequence[str]
) -> ErrorReply:
    code = error.code or 500
    kind = _HTTP_KINDS.get(code, "bad_http" if 400 <= code < 500 else "internal")
    message = error.description or error.name
    headers: tuple[tuple[str, str], ...] = ()
    if code == 413:
        message = f"body: larger than {max_request_size} bytes (max_request_size)"
    elif code == 405:
        allowed = ", ".join(sorted(getattr(error, "valid_methods", None) or ()))
        message = f"method not allowed for this path; allowed: {allowed}"
        headers = (("Allow", allowed),)
    elif code == 404:
        message = _OTHER_PATHS.get(path) or _no_such_path(path, paths)
    return ErrorReply(kind, message, headers=headers)


def _no_such_path(path: str, paths: Sequence[str]) -> str:
    message = f"no such path (got {as_json(path)})"
    if near := nearest(path, paths):
        return f"{message}; did you mean {near}?"
    available = [one for one in _MAIN_PATHS if one in paths]
    return f"{message}; available: {', '.join(available)}" if available else message
