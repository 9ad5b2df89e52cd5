"""What a dialect is, and what every dialect is given.

A dialect turns a body into a `Call`: validated requests, one for each prompt, and a `Reply` that knows how their answer
is written. All between the two, from submitting to the last byte, is the same for all dialects: `apis/serve.py`.
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
from lmi_server.generation.continuation import GenerationRequest, TextOutput
from lmi_server.generation.generation import GenerationResult
from lmi_server.http.body import Bodies
from lmi_server.metrics import Metrics
from lmi_server.text.tokenizer import TextModel


@dataclass(frozen=True, slots=True)
class ApiContext:
    """What the dialects work with."""

    config: WebConfig
    engine: Engine
    capabilities: Capabilities
    text: TextModel
    metrics: Metrics
    bodies: Bodies
    openai_defaults: Mapping[str, Any]
    """Sampling parameters of an OpenAI body that gives none, by key of the parameter table."""


class Reply(Protocol):
    """How one call's answer is written. May keep state: it belongs to one call."""

    @property
    def streamed(self) -> bool:
        """Whether the answer goes out step by step."""

    @property
    def content_type(self) -> str:
        """Of a streamed answer; a whole one is JSON."""

    def whole(self, result: GenerationResult) -> Any:
        """The JSON value of a whole answer."""

    def start(self) -> str:
        """What a stream begins with."""

    def records(self, output: TextOutput) -> str:
        """The records of one step; may be empty."""

    def end(self, result: GenerationResult) -> str:
        """What ends a stream that went well, after the last step; may be empty."""

    def failure(self, error: ErrorReply) -> str:
        """The record that ends a stream that failed."""


@dataclass(frozen=True, slots=True)
class Service:
    """What a body says of how it is to be served."""

    priority: int = 0
    """Smaller comes first, under the engine's `priority` policy."""
    timeout: float | None = None
    """Seconds from the arrival, at most `option.predict_timeout`; None: that one."""


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed body."""

    requests: tuple[GenerationRequest, ...]
    """At least one."""
    reply: Reply
    service: Service


Parse = Callable[[ApiContext, Mapping[str, Any]], Call]
"""A dialect: context and body in, `Call` out. Raises `engines.errors.InvalidRequest`."""

Api = Callable[[ApiContext], Blueprint]
"""What `APIS` lists: makes the routes of one dialect."""
