"""Framing of streams: JSON lines and server-sent events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmi_server.errors import dump


@dataclass(frozen=True, slots=True)
class Framing:
    """How records become bytes of one stream."""

    content_type: str
    prefix: str
    suffix: str

    def frame(self, record: Any) -> str:
        """One record, complete with its end of line."""
        return self.prefix + dump(record) + self.suffix


JSON_LINES = Framing("application/jsonlines", "", "\n")
SSE = Framing("text/event-stream; charset=utf-8", "data: ", "\n\n")
SSE_DONE = "data: [DONE]\n\n"
"""What ends a stream of OpenAI's kind that went well."""
