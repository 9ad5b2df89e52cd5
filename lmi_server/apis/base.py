"""What an API is made of, and what every API gets.

A body becomes a `Call`: validated requests, one for each prompt, and a `Reply` that writes their answer. Everything
between the two, from submitting to the last byte, is the same for all bodies: `apis/serve.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flask import Blueprint

from engines.base import Engine
from engines.capabilities import Capabilities
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
    """What every API works with, also those of a user's handler."""

    config: WebConfig
    engine: Engine
    metrics: Metrics
    bodies: Bodies


@dataclass(frozen=True, slots=True)
class ApiContext(ServerContext):
    """What the APIs of text generation work with."""

    capabilities: Capabilities
    text: TextModel
    openai_defaults: Mapping[str, Any]
    """Sampling parameters of an OpenAI body that gives none, by key of the parameter table."""
    formatter: Formatter | None = None
    """The user's formatters."""


class Reply(Protocol):
    """Writes the answer of one call. May keep state."""

    @property
    def streamed(self) -> bool:
        """Whether the answer is a stream."""

    @property
    def content_type(self) -> str:
        """Of a stream; a whole answer is JSON."""

    def whole(self, result: GenerationResult) -> Any:
        """Return the JSON value of a whole answer."""

    def start(self) -> str:
        """Return the beginning of a stream."""

    def records(self, output: TextOutput) -> str:
        """Return the records of one output; may be empty."""

    def end(self, result: GenerationResult) -> str:
        """Return the end of a stream without an error; may be empty."""

    def failure(self, error: ErrorReply) -> str:
        """Return the last record of a stream that failed."""


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed body."""

    requests: tuple[GenerationRequest, ...]
    """At least one."""
    reply: Reply
    priority: int
    """Smaller comes first, under the engine's `priority` policy."""
    timeout: float | None
    """Seconds from the arrival, at most `option.predict_timeout`; None: that one."""


Parse = Callable[[ApiContext, Mapping[str, Any]], Call]
"""Context and body in, `Call` out. Raises `engines.errors.InvalidRequest`."""

Api = Callable[[ApiContext], Blueprint]
"""Makes the routes of one API; listed in `APIS`."""

HandlerApi = Callable[[ServerContext], Blueprint]
"""As `Api`, for a user's handler; listed in `HANDLER_APIS`."""
