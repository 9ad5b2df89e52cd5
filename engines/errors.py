"""What can go wrong with a request or with the engine; the HTTP status of each stands in `lmi_server/errors.py`."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors that a client may be told about. `str(error)` is fit for the client.

    `kind` is the stable name under which the error crosses the process boundary.
    """

    kind = "engine_error"


class InvalidRequest(EngineError):
    """The request itself is at fault. The text names field, value and limit."""

    kind = "invalid_request"


class Overloaded(EngineError):
    """The queue is full; trying later may work."""

    kind = "overloaded"


class Unavailable(EngineError):
    """The engine is loading or draining; trying later may work."""

    kind = "unavailable"


class DeadlineExceeded(EngineError):
    """The request ran longer than `option.predict_timeout`."""

    kind = "deadline_exceeded"


class RequestFailed(EngineError):
    """This request failed inside the engine; others are not touched."""

    kind = "request_failed"


class EngineDied(EngineError):
    """The engine process is gone, and the request with it."""

    kind = "engine_died"


_BY_KIND: dict[str, type[EngineError]] = {
    error.kind: error
    for error in (InvalidRequest, Overloaded, Unavailable, DeadlineExceeded, RequestFailed, EngineDied)
}


def error_from_kind(kind: str, message: str) -> EngineError:
    """Rebuild an error that crossed a process boundary; an unknown kind becomes `RequestFailed`."""
    return _BY_KIND.get(kind, RequestFailed)(message)
