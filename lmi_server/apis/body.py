"""From the bytes of a request to a JSON object that is safe to look at."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from flask import Request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import RequestEntityTooLarge

from engines.errors import InvalidRequest
from lmi_server.errors import UnsupportedMediaType

MAX_DEPTH = 32
"""Lists and objects inside each other."""
_ACCEPTED_TYPES = "application/json (UTF-8)"


def read_object(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises:
        UnsupportedMediaType: by its headers the body is something else.
        InvalidRequest: the body is not a JSON object.
        werkzeug.exceptions.RequestEntityTooLarge: it is larger than the application accepts.
    """
    _check_media_type(request)
    data = _read(request)
    if not data.strip():
        raise InvalidRequest("body: empty; accepted: a JSON object")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"body: byte {error.start} (0x{data[error.start]:02x}) is not valid UTF-8; accepted: a JSON object in UTF-8"
        ) from error
    try:
        body = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError as error:
        raise InvalidRequest(_too_deep()) from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"body: not valid JSON: {error.msg} at line {error.lineno} column {error.colno}; accepted: a JSON object"
        ) from error
    except ValueError as error:  # a number with thousands of digits
        raise InvalidRequest(f"body: not valid JSON: {error}; accepted: a JSON object") from error
    if not isinstance(body, dict):
        raise InvalidRequest(f"body: given {_type_name(body)}; accepted: a JSON object")
    _check_tree(body)
    return body


def _read(request: Request) -> bytes:
    try:
        data = request.get_data(cache=False)
        limit = request.max_content_length
        # A body without a length is cut at the limit in silence; a byte after it shows that.
        if limit is not None and len(data) >= limit and request.content_length is None:
            rest: bytes = request.environ["wsgi.input"].read(1)
            if rest:
                raise RequestEntityTooLarge
    except (OSError, ParseException) as error:  # a chunked body that breaks off, or is no chunks
        raise InvalidRequest("body: its transfer broke off; accepted: a complete JSON object") from error
    return data


def _check_media_type(request: Request) -> None:
    """No type at all and `application/octet-stream` are what clients send that leave the type to a default."""
    if not request.content_type:
        return
    mimetype = request.mimetype
    json_like = mimetype == "application/json" or (
        mimetype.startswith("application/") and mimetype.endswith("+json")
    )
    if not json_like and mimetype != "application/octet-stream":
        raise UnsupportedMediaType(
            f"Content-Type: given {request.content_type[:100]!r}; accepted: {_ACCEPTED_TYPES}"
        )
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise UnsupportedMediaType(
            f"Content-Type: given charset {charset[:40]!r}; accepted: {_ACCEPTED_TYPES}"
        )


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"body: given the number {name}; accepted: finite numbers, as JSON has them")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(
            f"body: the name {json.dumps(twice[:80])} is given more than once; accepted: once"
        )
    return found


def _check_tree(body: dict[str, Any]) -> None:
    """Depth, and that every text can be written as UTF-8: JSON escapes may spell half a surrogate pair."""
    level: list[Any] = [body]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidRequest(_too_deep())
        inner: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                for name in container:
                    _check_text(name)
            for value in container.values() if isinstance(container, dict) else container:
                if isinstance(value, str):
                    _check_text(value)
                elif isinstance(value, dict | list):
                    inner.append(value)
        level = inner


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"body: a string holds the unpaired surrogate \\u{ord(text[error.start]):04x}; accepted: valid Unicode"
        ) from error


def _too_deep() -> str:
    return f"body: lists and objects are nested more than {MAX_DEPTH} deep; accepted: at most {MAX_DEPTH}"


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "something else")
