"""Conversion of an HTTP request to a handler's input: headers become properties, the body one or several parts."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

import gevent
from flask import Request
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.sansio.multipart import (
    BLANK_LINE_RE,
    Data,
    Epilogue,
    Event,
    Field,
    File,
    MultipartDecoder,
    NeedData,
    State,
)

from engines.errors import InvalidRequest
from engines.invocations import Invocation
from lmi_server.http import custom_attributes
from lmi_server.request_log import RequestRecord

_MAX_PARTS = 1000
_MAX_HEADER_BYTES = 8 * 1024
"""Maximum number of bytes of the headers of a part, and of what precedes the first part. It keeps the time to parse the
headers of all parts to seconds."""
_PIECE_BYTES = 64 * 1024
"""Number of bytes of a form that are decoded before other greenlets run."""


def invocation(request: Request, data: bytearray, record: RequestRecord) -> Invocation:
    """Create the handler's input. `data`: the body. Raises `InvalidRequest` if a form cannot be parsed."""
    attributes = custom_attributes.pairs(request.headers.get(custom_attributes.HEADER, ""))
    properties = {**dict(request.headers.items()), **dict(attributes)}
    properties["requestId"] = record.label
    content = (
        *_parts(request, data),
        *((name, value.encode()) for name, value in request.args.items(multi=True)),
    )
    # A handler takes an input without content for the initial call, in which it loads its model.
    return Invocation(record.id, record.arrival_time, properties, content or (("data", b""),))


def _parts(request: Request, data: bytearray) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each part of a form, or of the whole body if it is not a form."""
    try:
        if request.mimetype == "multipart/form-data":
            yield from _multipart(data, request.mimetype_params.get("boundary", ""))
        elif request.mimetype == "application/x-www-form-urlencoded":
            yield from _urlencoded(data)
        elif data:
            yield "data", bytes(data)
    except RequestEntityTooLarge:
        raise InvalidRequest(f"body: the form has more than {_MAX_PARTS} parts") from None
    except (ValueError, HTTPException) as error:
        raise InvalidRequest(f"body: the form cannot be read: {error}") from None


def _urlencoded(data: bytearray) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the value of each part; parts with the same name follow one another.

    Raises `UnicodeDecodeError`, or `RequestEntityTooLarge` if there are too many parts.
    """
    if data.count(b"&") >= _MAX_PARTS:
        raise RequestEntityTooLarge
    data.decode()
    form: MultiDict[str, bytes] = MultiDict()
    for pair in data.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            form.add(_unquoted(name).decode(), _unquoted(value))
    yield from form.items(multi=True)


def _unquoted(data: bytearray) -> bytes:
    """Replace `+` and `%XX`. Bytes that are not valid UTF-8 stay quoted."""
    decoder = codecs.getincrementaldecoder("utf-8")("werkzeug.url_quote")
    result = bytearray()
    start = 0
    while start < len(data):
        end = start + _PIECE_BYTES
        if end < len(data) and (percent := data.rfind(b"%", max(start + 1, end - 2), end)) >= 0:
            end = percent  # do not split %XX
        result += decoder.decode(unquote_to_bytes(bytes(data[start:end]).replace(b"+", b" "))).encode()
        start = end
        gevent.sleep(0)
    return bytes(result) + decoder.decode(b"", final=True).encode()


def _multipart(data: bytearray, boundary: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the unchanged bytes of each part, in order.

    Raises `ValueError`, or `RequestEntityTooLarge` if there are too many parts.
    """
    if not boundary:
        raise ValueError("the content type has no boundary")
    decoder = MultipartDecoder(boundary.encode("ascii"), max_parts=_MAX_PARTS)
    name, body = "", bytearray()
    for start in range(0, len(data) + _PIECE_BYTES, _PIECE_BYTES):
        decoder.receive_data(bytes(data[start : start + _PIECE_BYTES]) or None)  # None after the last piece
        gevent.sleep(0)
        while not isinstance(event := _next_event(decoder), NeedData | Epilogue):
            if isinstance(event, Field | File):
                if not event.name:
                    raise ValueError("a part has no name")
                name, body = event.name, bytearray()
                gevent.sleep(0)  # its headers may have taken long to parse
            elif isinstance(event, Data):
                body += event.data
                if not event.more_data:
                    yield name, bytes(body)


def _next_event(decoder: MultipartDecoder) -> Event:
    """Return the next event. Raises `ValueError` if the headers of a part are too long, before they are parsed."""
    if decoder.state is State.PART and not BLANK_LINE_RE.search(decoder.buffer, 0, _MAX_HEADER_BYTES):
        _check_buffer(decoder, "the headers of a part are")
    event = decoder.next_event()
    if decoder.state is State.PREAMBLE:
        _check_buffer(decoder, "the text before the first part is")
    return event


def _check_buffer(decoder: MultipartDecoder, subject: str) -> None:
    if len(decoder.buffer) > _MAX_HEADER_BYTES:
        raise ValueError(f"{subject} longer than {_MAX_HEADER_BYTES} bytes")
