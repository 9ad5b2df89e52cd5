"""`POST /invocations`: LMI's schema (`inputs`, `parameters`, `stream`); a body with `messages` is a chat."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, request

from lmi_server.apis import openai_chat
from lmi_server.apis.base import ApiContext, Call
from lmi_server.apis.checks import parse_parameters, refuse, unknown_field
from lmi_server.apis.lmi_reply import LmiReply
from lmi_server.apis.parameters import DEFAULT_MAX_NEW_TOKENS, Names, Parsed, rows
from lmi_server.apis.prompts import encode_prompt, generation_request
from lmi_server.apis.serve import answer
from lmi_server.errors import ErrorForm, InvalidField
from lmi_server.streaming import JSON_LINES, SSE, Framing

_logger = logging.getLogger(__name__)

_FIELDS = ("inputs", "parameters", "stream", "adapters", "messages")
_FRAMINGS: dict[str, Framing | None] = {"json": None, "jsonlines": JSON_LINES, "sse": SSE}
_ACCEPTED_FORMATS = {
    "text/event-stream": "sse",
    "application/jsonlines": "jsonlines",
    "application/x-ndjson": "jsonlines",
    # Clients send it by habit, so it asks for nothing.
    "application/json": None,
    "*/*": None,
}
_ATTRIBUTES_HEADER = "X-Amzn-SageMaker-Custom-Attributes"
_ATTRIBUTES = re.compile(r"[\x20-\x7e]{0,1024}")
_ADAPTER_HEADER = "X-Amzn-SageMaker-Adapter-Identifier"
_FORWARDED_API_HEADER = "X-Amzn-SageMaker-Forwarded-Api"
_STREAMING_API = "InvokeEndpointWithResponseStream"


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("invocations", __name__)

    @blueprint.post("/invocations")
    def invocations() -> Response:
        attributes = _custom_attributes()
        response = answer(context, _parse)
        if attributes is not None:
            response.headers[_ATTRIBUTES_HEADER] = attributes
        return response

    return blueprint


def _parse(context: ApiContext, body: Mapping[str, Any]) -> Call:
    if adapter := request.headers.get(_ADAPTER_HEADER):
        raise InvalidField(
            _ADAPTER_HEADER, f"given {adapter[:80]!r}, but adapters are not done here; accepted: none"
        )
    if body.get("stream") is None and request.headers.get(_FORWARDED_API_HEADER) == _STREAMING_API:
        # The platform says by which of its calls the request came; it speaks where the body is silent.
        body = {**body, "stream": True}
    if "messages" in body:
        return openai_chat.parse(context, body, error_form=ErrorForm.LMI)
    return _parse_inputs(context, body)


def _parse_inputs(context: ApiContext, body: Mapping[str, Any]) -> Call:
    _check_fields(context, body)
    inputs = body.get("inputs")
    if not isinstance(inputs, str) or not inputs:
        raise refuse("inputs", inputs, "a string that is not empty (or 'messages' for a chat)")
    parsed = _parameters(context, body.get("parameters"))
    framing = _framing(context, parsed, _stream_flag(body))
    details: bool = parsed["details"]
    generation = generation_request(
        context,
        prompt=inputs,
        token_ids=encode_prompt(context, "inputs", inputs, add_special_tokens=True),
        parsed=parsed,
        default_max_new_tokens=DEFAULT_MAX_NEW_TOKENS,
        logprobs=details or framing is not None,
        continues_prompt=True,
    )
    as_list = context.config.engine == "Python"
    return Call(generation, LmiReply(generation, details, parsed["return_full_text"], as_list, framing))


def _refuses_unknown(context: ApiContext) -> bool:
    return context.config.server.unknown_parameters != "warn"


def _check_fields(context: ApiContext, body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name in _FIELDS:
            continue
        if not _refuses_unknown(context):
            _logger.warning("unknown field is ignored: %s", ascii(name)[:200])
            continue
        if name in rows(Names.LMI):
            raise InvalidField(name, f'belongs inside \'parameters\', as {{"parameters": {{"{name}": ...}}}}')
        raise unknown_field(name, name, value, _FIELDS)
    if body.get("adapters") not in (None, "", [], [""]):
        raise refuse("adapters", body["adapters"], "null, or leave it out; adapters are not done here")


def _parameters(context: ApiContext, parameters: Any) -> Parsed:
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise refuse("parameters", parameters, "an object")
    refuse_unknown = _refuses_unknown(context)
    parsed = parse_parameters(parameters, Names.LMI, prefix="parameters.", refuse_unknown=refuse_unknown)
    if parsed.unknown:
        _logger.warning("unknown parameters are ignored: %s", ", ".join(map(ascii, parsed.unknown))[:400])
    return parsed


def _stream_flag(body: Mapping[str, Any]) -> bool:
    stream = body.get("stream")
    if stream is None:
        return False
    if not isinstance(stream, bool):
        raise refuse("stream", stream, "true or false")
    return stream


def _framing(context: ApiContext, parsed: Parsed, stream: bool) -> Framing | None:
    """The request's own formatter, then its Accept header, then the server's; `stream` turns json into lines."""
    asked = parsed["output_formatter"] or _accepted_format() or context.config.server.output_formatter
    framing = _FRAMINGS.get(asked or "json")
    return JSON_LINES if framing is None and stream else framing


def _accepted_format() -> str | None:
    for mimetype, _ in request.accept_mimetypes:
        if mimetype in _ACCEPTED_FORMATS:
            return _ACCEPTED_FORMATS[mimetype]
    return None


def _custom_attributes() -> str | None:
    """The header as it came: what a caller attaches to a request comes back with the answer."""
    value = request.headers.get(_ATTRIBUTES_HEADER)
    if value is not None and not _ATTRIBUTES.fullmatch(value):
        raise InvalidField(
            _ATTRIBUTES_HEADER,
            f"given {len(value)} characters; accepted: at most 1024, all of them visible ASCII",
        )
    return value
