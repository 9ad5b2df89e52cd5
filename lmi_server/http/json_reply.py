"""JSON responses."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Response

_encode = msgspec.json.Encoder().encode


def dump(value: Any) -> str:
    """Write compact JSON on one line. Text in `msgspec.Raw` is returned as it is.

    Of the non-ASCII characters, only those are escaped that many clients treat as line breaks when they split a stream.
    """
    text = _encode(value).decode()
    if text.isascii() or isinstance(value, msgspec.Raw):
        return text
    return text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


_RETRY_AFTER_SECONDS = 5


def unhealthy_response(facts: dict[str, Any]) -> Response:
    """Return the 503 of a health check, with the status `Unhealthy` before `facts`."""
    response = json_response({"status": "Unhealthy", **facts}, 503)
    response.headers["Retry-After"] = str(_RETRY_AFTER_SECONDS)
    return response


def json_response(value: Any, status: int = 200) -> Response:
    """Return a response that consists of one JSON value and a newline."""
    return Response(dump(value) + "\n", status, content_type="application/json")
