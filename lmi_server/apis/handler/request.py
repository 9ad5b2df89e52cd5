"""Conversion of an HTTP request to a handler's input: headers become properties, the body one or several parts."""

from __future__ import annotations

import io
from collections.abc import Iterator

from flask import Request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.formparser import FormDataParser
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from engines.errors import InvalidRequest
from engines.invocations import Invocation
from lmi_server.request_log import RequestRecord

_ATTRIBUTES = "x-amzn-sagemaker-custom-attributes"
_MAX_PARTS = 1000
_PIECE_BYTES = 64 * 1024
"""Number of bytes of a form that are decoded at a time."""


def invocation(request: Request, data: bytearray, record: RequestRecord) -> Invocation:
    """Create the handler's input. `data`: the body. Raises `InvalidRequest` if a form cannot be parsed."""
    properties = dict(request.headers.items())
    for name in [name for name in properties if name.lower() == _ATTRIBUTES]:
        properties |= _attributes(properties[name])
    properties["requestId"] = record.label
    content = (
        *_parts(request, data),
        *((name, value.encode()) for name, value in request.args.items(multi=True)),
    )
    # A handler takes an input without content for the initial call, in which it loads its model.
    return Invocation(record.id, record.arrival_time, properties, content or (("data", b""),))


def _attributes(text: str) -> dict[str, str]:
    """Parse custom attributes as LMI does: `a=b;c=d`. Items without `=` are ignored."""
    pairs = (item.partition("=") for item in text.split(";"))
    return {name.strip(): value.strip() for name, is_pair, value in pairs if is_pair and name.strip()}


def _parts(request: Request, data: bytearray) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each part of a form, or of the whole body if it is not a form."""
    try:
        if request.mimetype == "multipart/form-data":
            yield from _multipart(data, request.mimetype_params.get("boundary", ""))
        elif request.mimetype == "application/x-www-form-urlencoded":
            _, form, _ = FormDataParser(silent=False).parse(io.BytesIO(data), request.mimetype, len(data))
            for name, value in form.items(multi=True):
                yield name, value.encode()
        elif data:
            yield "data", bytes(data)
    except RequestEntityTooLarge:
        raise InvalidRequest(f"body: the form has more than {_MAX_PARTS} parts") from None
    except (ValueError, HTTPException) as error:
        raise InvalidRequest(f"body: the form cannot be read: {error}") from None


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
        while not isinstance(event := decoder.next_event(), NeedData | Epilogue):
            if isinstance(event, Field | File):
                if not event.name:
                    raise ValueError("a part has no name")
                name, body = event.name, bytearray()
            elif isinstance(event, Data):
                body += event.data
                if not event.more_data:
                    yield name, bytes(body)
