"""What the web process needs of an engine, whichever it is. Implementations: `engines/client.py`, test fakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from engines.core import AbortReason, EngineStats, Request, RequestOutput, SchedulerSettings
from engines.health import Health

SettingValue = int | float | bool | str | None
"""Of a field of `engines.core.SchedulerSettings`."""


class SchedulerAnswer(NamedTuple):
    """What an engine says to a change of its scheduler's settings."""

    settings: SchedulerSettings | None
    """Those in force; None: this engine has no such scheduler."""
    refused: Mapping[str, str]
    """By field: why its value is not accepted. With any, nothing was changed."""


class RequestStream(Protocol):
    """The outputs of the requests that were submitted together, each one's in order."""

    @property
    def ready(self) -> bool:
        """Whether the next output is here already."""

    def next(self, timeout: float) -> RequestOutput | None:
        """Wait at most `timeout` seconds for the next output; None when the time is over.

        Each request's last output is `finished`; asking for more when all have had theirs is a mistake of the caller.
        Engine death comes as an output with `error_kind`, never as silence.
        """


class Engine(Protocol):
    """Submit, abort, look. Safe to call from many greenlets at once."""

    def submit(self, *requests: Request) -> RequestStream:
        """Hand requests over. A refusal (queue full, draining) is a request's first and only output."""

    def abort(self, request_id: str, reason: AbortReason) -> None:
        """Free what the request holds: nobody wants more of it. No further output. Idempotent."""

    def health(self) -> Health:
        """Read from shared memory; never blocks."""

    def stats(self, timeout: float) -> EngineStats | None:
        """Ask the engine for its counters; None when it does not answer within `timeout` seconds."""

    def configure_scheduler(
        self, changes: Mapping[str, SettingValue], timeout: float
    ) -> SchedulerAnswer | None:
        """Change fields of `SchedulerSettings` at the next step boundary, all or none; no change only asks for those in
        force. None when there is no answer within `timeout` seconds; what was sent may take effect still.
        """

    def close(self) -> None:
        """Let go of sockets and files."""
