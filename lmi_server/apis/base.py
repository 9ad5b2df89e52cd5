"""Types that all APIs share.

A body is parsed into a `Call`: validated requests, one for each prompt, and a `Reply` that writes the answer.
`apis/serve.py` does the rest, from submitting the requests to sending the last byte, in the same way for all bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from flask import Blueprint

from engines.base import Engine
from engines.capabilities import Capabilities
from engines.errors import Unavailable
from engines.health import EngineState, Health
from lmi_server.config import WebConfig
from lmi_server.errors import ErrorReply
from lmi_server.generation.answer_text import GenerationRequest, TextOutput
from lmi_server.generation.formatter import Formatter
from lmi_server.generation.generation import GenerationResult
from lmi_server.http.body import Bodies
from lmi_server.metrics import Metrics
from lmi_server.text.tokenizer import TextModel


@dataclass(frozen=True, slots=True)
class ServerContext:
    """Objects that every API uses, including the APIs of a user's handler."""

    config: WebConfig
    engine: Engine
    metrics: Metrics
    bodies: Bodies

    def health(self) -> Health:
        """Return the health of the processes that requests need."""
        return self.engine.health()

    def require_ready(self) -> None:
        """Raise `Unavailable` unless these processes are ready."""
        health = self.health()
        if health.state is not EngineState.READY:
            raise Unavailable(health.summary())


@dataclass(frozen=True, slots=True)
class ApiContext(ServerContext):
    """Objects that the text generation APIs use."""

    capabilities: Capabilities
    text: TextModel
    openai_defaults: Mapping[str, Any]
    """Default sampling parameters of OpenAI bodies, by key of the parameter table."""
    formatter: Formatter | None = None
    """User-defined formatters."""

    @property
    def output_formatter(self) -> Formatter | None:
        """`formatter` if it rewrites answers."""
        formatter = self.formatter
        return formatter if formatter is not None and formatter.writes_answers else None

    def health(self) -> Health:
        """Return the health of the engine, or that of the formatters if only they are not ready."""
        engine = self.engine.health()
        if self.formatter is None or engine.state is not EngineState.READY:
            return engine
        formatter = self.formatter.health()
        return engine if formatter.ready else replace(formatter, copies=engine.copies)


class Reply(Protocol):
    """Writes the answer to one call. It may keep state. Records of a stream are returned with their framing."""

    @property
    def streamed(self) -> bool:
        """Whether the answer is a stream."""

    @property
    def content_type(self) -> str:
        """Content type of a stream. A whole answer is always JSON."""

    def body(self, result: GenerationResult) -> Any:
        """Return the JSON value of a whole answer."""

    def start(self) -> list[str]:
        """Return the records that begin a stream."""

    def records(self, output: TextOutput) -> list[str]:
        """Return the records for one output."""

    def end(self, result: GenerationResult) -> list[str]:
        """Return the records that end a successful stream."""

    def failure(self, error: ErrorReply) -> str:
        """Return the last record of a failed stream."""


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed request body."""

    requests: tuple[GenerationRequest, ...]
    """At least one request."""
    reply: Reply
    parameters: Mapping[str, Any]
    """The body's parameters for the output formatter, including `stream`; empty without one."""
    priority: int
    """Priority under the engine's `priority` policy. Smaller values are scheduled first."""
    timeout: float | None
    """Seconds from the arrival, at most `option.predict_timeout`. None: `option.predict_timeout` applies."""


Parse = Callable[[ApiContext, Mapping[str, Any]], Call]
"""Function that parses a body into a `Call`. Raises `engines.errors.InvalidRequest`."""

Api = Callable[[ApiContext], Blueprint]
"""Function that creates the routes of one API. Listed in `APIS`."""

HandlerApi = Callable[[ServerContext], Blueprint]
"""Like `Api`, for a server that runs a user's handler. Listed in `HANDLER_APIS`."""
