"""Errors of requests and of the engine. `lmi_server/errors.py` maps them to HTTP statuses."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors whose text a client may see."""

    kind = "engine_error"
    """Stable name of the error between processes."""


class InvalidRequest(EngineError):
    """The request is invalid. The text names field, value and limit."""

    kind = "invalid_request"


class TooManyOutputs(InvalidRequest):
    """One HTTP request needs more outputs than even an idle engine has room for. The web process adds the field."""

    kind = "too_many_outputs"


class Overloaded(EngineError):
    """The queue is full. A later retry may succeed."""

    kind = "overloaded"


class Unavailable(EngineError):
    """The engine is loading or draining. A later retry may succeed."""

    kind = "unavailable"


class DeadlineExceeded(EngineError):
    """The request ran longer than `option.predict_timeout`."""

    kind = "deadline_exceeded"


class RequestFailed(EngineError):
    """The request failed inside the engine; others are not affected."""

    kind = "request_failed"


class EngineDied(EngineError):
    """The engine process ended while the request was in progress."""

    kind = "engine_died"


def tokens_generated(count: int) -> str:
    """Return how many tokens a request had when it ended early, in words."""
    return "1 token was generated" if count == 1 else f"{count} tokens were generated"


def describe(error: Exception) -> str:
    """Return the text of an error that ended the engine, for the operator.

    The class name precedes it, except for `ValueError` and the errors of `engines`, whose texts stand alone.
    """
    own = type(error) is ValueError or type(error).__module__.partition(".")[0] == __package__
    return str(error) if own and str(error) else f"{type(error).__name__}: {error}"


_BY_KIND: dict[str, type[EngineError]] = {
    error.kind: error
    for error in (
        InvalidRequest,
        TooManyOutputs,
        Overloaded,
        Unavailable,
        DeadlineExceeded,
        RequestFailed,
        EngineDied,
    )
}


def error_from_kind(kind: str, message: str) -> EngineError:
    """Create the error of a kind; `RequestFailed` for an unknown kind."""
    return _BY_KIND.get(kind, RequestFailed)(message)
