"""JSON as it is sent to clients."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Response

_encode = msgspec.json.Encoder().encode


def dump(value: Any) -> str:
    """Write compact JSON on one line.

    Of all characters only those are escaped that many clients take for the end of a line when they split a stream.
    """
    text = _encode(value).decode()
    if text.isascii():
        return text
    return text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def json_response(value: Any, status: int = 200) -> Response:
    """Make a response of one JSON value and a newline."""
    return Response(dump(value) + "\n", status, content_type="application/json")
