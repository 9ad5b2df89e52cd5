"""Framing of streams: JSON lines and server-sent events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmi_server.http.json_reply import dump


@dataclass(frozen=True, slots=True)
class Framing:
    """The format of the records of a stream."""

    content_type: str
    prefix: str
    suffix: str

    def frame(self, record: Any) -> str:
        """Return one record as text, with its prefix and suffix."""
        return self.prefix + dump(record) + self.suffix


UNBUFFERED = "X-Accel-Buffering"
"""Header of streams, with the value `no`: nginx then passes on each record at once."""
JSON_LINES = Framing("application/jsonlines", "", "\n")
SSE = Framing("text/event-stream; charset=utf-8", "data: ", "\n\n")
SSE_DONE = "data: [DONE]\n\n"
"""The last event of an OpenAI stream that ends without an error."""
