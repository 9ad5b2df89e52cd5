"""The request log: one line for each request. Prompts are never logged."""

from __future__ import annotations

import logging
import re
import time
import uuid
from dataclasses import dataclass, field

from flask import Response, g
from werkzeug.datastructures import Headers

from lmi_server.generation.generation import TextGeneration
from lmi_server.http.client_gone import CLIENT_GONE_STATUS, ClientDisconnected

_logger = logging.getLogger(__name__)

QUIET_PATHS = ("/ping", "/health", "/metrics")
"""Paths that are polled continuously. Their requests are counted but not logged."""
_LABEL = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,128}")
_LABEL_HEADERS = ("X-Amzn-SageMaker-Inference-Id", "x-request-id")


@dataclass(slots=True)
class RequestRecord:
    """Log record of one HTTP request, filled in while the request is served."""

    client_id: str | None
    """Request id that the client sent. It is repeated in the log and in the response."""
    arrival_time: float
    """Arrival time in seconds, from `time.monotonic`."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    generation: TextGeneration | None = None
    finish: str = ""
    """How the request ended: finish reasons, the kind of an error, or `client_gone`."""

    @property
    def label(self) -> str:
        """Value of the response header `x-request-id`."""
        return self.client_id or self.id

    def log(self, method: str, path: str, status: int) -> None:
        """Write the log line."""
        generation = self.generation
        first = generation.first_token_time if generation is not None else None
        _logger.info(
            "%s client_id=%s %s %s status=%d prompts=%d prompt_tokens=%d generated_tokens=%d ttft_ms=%s total_ms=%.1f"
            " finish=%s",
            self.id,
            self.client_id or "-",
            method,
            path,
            status,
            generation.num_prompts if generation is not None else 0,
            generation.num_prompt_tokens if generation is not None else 0,
            generation.num_generated if generation is not None else 0,
            "-" if first is None else f"{(first - self.arrival_time) * 1000:.1f}",
            (time.monotonic() - self.arrival_time) * 1000,
            self.finish or "-",
        )


def begin_record(headers: Headers) -> None:
    """Create the record of a request that has just arrived. An invalid id from the client is ignored."""
    values = (headers.get(name, "") for name in _LABEL_HEADERS)
    g.lmi_record = RequestRecord(next(filter(_LABEL.fullmatch, values), None), time.monotonic())


def current_record() -> RequestRecord:
    """Return the record of the current request."""
    record: RequestRecord = g.lmi_record
    return record


def client_gone(_: ClientDisconnected) -> Response:
    """Record that the client disconnected. Return a response, which only the counters see."""
    current_record().finish = "client_gone"
    return Response(status=CLIENT_GONE_STATUS)
