"""Calls of a user's handler and its answers, as processes exchange them: bytes and headers, no tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from engines.errors import EngineError


@dataclass(frozen=True, slots=True)
class Invocation:
    """One HTTP request for a handler. The server creates `id`."""

    id: str
    arrival_time: float
    """`time.monotonic()` when the HTTP request arrived; all processes of a host share this clock."""
    properties: dict[str, str]
    """HTTP headers, custom attributes and `requestId`."""
    content: tuple[tuple[str, bytes], ...]
    """(name, bytes) of each part, at least one; the body of a request without parts is `data`."""


class AnswerHead(NamedTuple):
    """Status and headers of an answer."""

    status: int
    message: str
    """The reason phrase."""
    headers: tuple[tuple[str, str], ...]


class InvocationOutput(NamedTuple):
    """A piece of an answer. The first one has a `head`; the last one is `last` or has an `error_kind`."""

    id: str
    head: AnswerHead | None = None
    body: bytes = b""
    last: bool = False
    error_kind: str = ""
    """A `kind` of `engines.errors`; empty without an error."""
    error_message: str = ""
    whole: bool = False
    """Of the first of several pieces: whether the handler has already returned the others too."""

    @classmethod
    def failed(cls, request_id: str, error: EngineError) -> Self:
        """Return the only or last piece of an answer that ends with an error."""
        return cls(request_id, error_kind=error.kind, error_message=str(error))

    @property
    def finished(self) -> bool:
        return self.last or bool(self.error_kind)
