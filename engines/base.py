"""The interface of an engine for the web process. Implementations: `engines/client.py` and test fakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from engines.core import AbortReason, EngineStats, Request, RequestOutput, SchedulerReply, SettingValue
from engines.health import Health
from engines.invocations import Invocation, InvocationOutput


class RequestStream(Protocol):
    """The outputs of requests that were submitted together, in order for each request."""

    def next(self, timeout: float) -> RequestOutput | None:
        """Wait at most `timeout` seconds for the next output; return None if there is none.

        Each request's last output is `finished`. When the engine dies, the last output has an `error_kind`.
        """


class InvocationStream(Protocol):
    """The pieces of a handler's answer, in order."""

    def next(self, timeout: float) -> InvocationOutput | None:
        """Wait at most `timeout` seconds for the next piece; return None if there is none.

        The last piece is `finished`. When the engine dies, the last piece has an `error_kind`.
        """


class Engine(Protocol):
    """Interface of an engine. Safe to call from many greenlets at once."""

    def submit(self, *requests: Request) -> RequestStream:
        """Submit requests. A refusal (queue full, draining) is a request's only output."""

    def abort(self, request_id: str, reason: AbortReason) -> None:
        """Stop a request and free its resources. There is no further output. Idempotent."""

    def health(self) -> Health:
        """Read the engine's health from shared memory; never blocks."""

    def stats(self, timeout: float) -> EngineStats | None:
        """Ask the engine for its counters; return None when it does not reply within `timeout` seconds."""

    def configure_scheduler(
        self, changes: Mapping[str, SettingValue], timeout: float
    ) -> SchedulerReply | None:
        """Change fields of `SchedulerSettings` between two steps, all or none. Without changes, only read them.

        Returns None when there is no reply within `timeout` seconds; the change may still take effect.
        Raises `engines.errors.Unavailable` while one of several copies does not serve.
        """


@runtime_checkable
class HandlerEngine(Engine, Protocol):
    """An engine that can run a user's handler. Not supported with several copies of an engine: a handler has workers
    instead."""

    def invoke(self, invocation: Invocation) -> InvocationStream:
        """Have the user's handler answer. A refusal is the only output."""
