"""Conversion of an HTTP request to a handler's input: headers become properties, the body one or several parts."""

from __future__ import annotations

import io
from collections.abc import Iterator

from flask import Request
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

from engines.errors import InvalidRequest
from engines.invocations import Invocation
from lmi_server.request_log import RequestRecord

_ATTRIBUTES = "x-amzn-sagemaker-custom-attributes"
_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
_MAX_PARTS = 1000


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
    if request.mimetype not in _FORMS:
        if data:
            yield "data", bytes(data)
        return
    parser = FormDataParser(max_form_memory_size=len(data) + 1, max_form_parts=_MAX_PARTS, silent=False)
    try:
        _, form, files = parser.parse(io.BytesIO(data), request.mimetype, len(data), request.mimetype_params)
    except RequestEntityTooLarge:
        raise InvalidRequest(f"body: the form has more than {_MAX_PARTS} parts") from None
    except (ValueError, HTTPException) as error:
        raise InvalidRequest(f"body: the form cannot be read: {error}") from None
    for name, value in form.items(multi=True):
        yield name, value.encode()
    for name, file in files.items(multi=True):
        with file.stream as stream:
            yield name, stream.read()
