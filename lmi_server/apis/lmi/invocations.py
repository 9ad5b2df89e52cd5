"""`POST /invocations`: LMI's schema (`inputs`, `parameters`, `stream`), or one of OpenAI's bodies.

A body with `messages` is a chat, and a body with `prompt` is a completion. Both are answered in OpenAI's format.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from flask import Blueprint, Response, after_this_request, request

from engines.capabilities import engines_with
from lmi_server.apis.base import ApiContext, Call
from lmi_server.apis.lmi.reply import LmiReply, shows_details
from lmi_server.apis.openai.chat import CHAT
from lmi_server.apis.openai.completions import COMPLETIONS
from lmi_server.apis.openai.fields import model_name
from lmi_server.apis.parameters.checks import MISSING, check_flag, refuse, refuse_unknown
from lmi_server.apis.parameters.combinations import AnswerCounts, check_repeated_prompts
from lmi_server.apis.parameters.parse import parse_parameters, refuse_unsupported, row_of
from lmi_server.apis.parameters.row import Names, Parameters
from lmi_server.apis.parameters.sampling import LogprobReport
from lmi_server.apis.parameters.table import DEFAULT_MAX_NEW_TOKENS, rows
from lmi_server.apis.pipeline import Body, BodyFields, BodyFormat, Conventions, parse
from lmi_server.apis.prompts import (
    MAX_PROMPTS,
    Prompt,
    encode_prompts,
    prompt_of_token_ids,
    texts_by_field,
    truncation_limit,
)
from lmi_server.apis.serve import answer
from lmi_server.errors import ErrorForm, InvalidField
from lmi_server.generation.answer_text import GenerationRequest
from lmi_server.http import custom_attributes
from lmi_server.http.framing import JSON_LINES, SSE, Framing
from lmi_server.values.base import is_integer
from lmi_server.values.show import as_json, names_in_log

_logger = logging.getLogger(__name__)

_LMI = Conventions(
    ErrorForm.LMI,
    cut_to_context=True,
    completions_sample=False,
    openai_framing=lambda: JSON_LINES if _accepted_format() == "jsonlines" else SSE,
)
_STREAMING = replace(_LMI, streams_by_default=True)
"""Rules for SageMaker's streaming API, which its header names."""
_FIELDS = ("inputs", "parameters", "stream", "messages", "prompt", "model")
_FRAMINGS: dict[str, Framing | None] = {"json": None, "jsonlines": JSON_LINES, "sse": SSE}
_ACCEPTED_FORMATS = {
    "text/event-stream": "sse",
    "application/jsonlines": "jsonlines",
    "application/x-ndjson": "jsonlines",
    # Many clients send these two by default, so they have no effect.
    "application/json": None,
    "*/*": None,
}
_SESSION_HEADER = "X-Amzn-SageMaker-Session-Id"
_FORWARDED_API_HEADER = "X-Amzn-SageMaker-Forwarded-Api"
_STREAMING_API = "InvokeEndpointWithResponseStream"


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("invocations", __name__)

    @blueprint.post("/invocations")
    def invocations() -> Response:
        return invoke(context)

    return blueprint


def invoke(context: ApiContext) -> Response:
    """Answer the current request as `/invocations` does. Raises `EngineError`."""
    attributes = _custom_attributes()
    if attributes is not None:

        @after_this_request
        def repeat_attributes(response: Response) -> Response:
            response.headers[custom_attributes.HEADER] = attributes
            return response

    _refuse_session()
    _refuse_pagination(attributes or "")
    return answer(context, _parse)


def _custom_attributes() -> str | None:
    """Return the custom attributes of the request. Every response repeats them. Raises `InvalidField`."""
    value = request.headers.get(custom_attributes.HEADER)
    if value is not None and not custom_attributes.VALID.fullmatch(value):
        raise InvalidField(
            custom_attributes.HEADER,
            f"given {len(value)} characters; accepted: at most 1024, all of them visible ASCII",
        )
    return value


def _refuse_session() -> None:
    if value := request.headers.get(_SESSION_HEADER):
        raise InvalidField(
            _SESSION_HEADER,
            f"given {as_json(value)}, but stateful sessions are not supported; accepted: none",
        )


def _refuse_pagination(attributes: str) -> None:
    """Raise `InvalidField` for LMI's pagination: a header or custom attribute that asks for a stored response."""
    for name, value in (*request.headers.items(), *custom_attributes.pairs(attributes)):
        name = name.lower()
        if name == "x-starting-token" or (name == "x-synchronous" and value.lower() != "true"):
            reason = 'but responses are not stored and paged; to get one in parts, send "stream": true'
            raise InvalidField(name, f"given {as_json(value)}, {reason}; accepted: none")


def _parse(context: ApiContext, body: Body) -> Call:
    field = _prompt_field(body)
    body = {name: value for name, value in body.items() if name == field or name not in _BODY_FORMATS}
    body_format = _BODY_FORMATS[field]
    if body_format is not _INPUTS:
        body = _with_inner_parameters(body, Names.CHAT if body_format is CHAT else Names.COMPLETIONS)
    if request.headers.get(_FORWARDED_API_HEADER) == _STREAMING_API:
        with suppress(InvalidField):
            return parse(context, body, body_format, _STREAMING)
        # As in LMI, what a stream cannot return is returned whole. Any other error is raised again.
    return parse(context, body, body_format, _LMI)


def _with_inner_parameters(body: Body, names: Names) -> Body:
    """Move the members of `parameters` to the top level of a chat or completion, where they belong.

    Some clients of LMI send both. A field that the top level sets too is logged and ignored.
    """
    inner = body.get("parameters")
    if not isinstance(inner, dict):
        return body
    table = rows(names)

    def key(name: str) -> str:
        """Return the key of the parameter that a field sets, or the name of any other field."""
        row = row_of(table, name)
        return row.name if row else name

    outer = {name: value for name, value in body.items() if name != "parameters"}
    set_outside = {key(name) for name, value in outer.items() if value is not None}
    used = {name: value for name, value in inner.items() if key(name) not in set_outside}
    if repeated := [f"parameters.{name}" for name in inner if name not in used]:
        _logger.info("repeated fields are ignored: %s", names_in_log(repeated))
    return {**outer, **used}


def _prompt_field(body: Body) -> str:
    """Return the field that determines the kind of the body. Raises `InvalidField` if there are several."""
    present = [name for name in _BODY_FORMATS if body.get(name) is not None]
    if len(present) > 1:
        raise InvalidField(
            present[1], f"given together with {present[0]!r}; accepted: one of {', '.join(_BODY_FORMATS)}"
        )
    return next(iter(present or [name for name in _BODY_FORMATS if name in body]), "inputs")


def _read_fields(context: ApiContext, body: Body, conventions: Conventions) -> BodyFields:
    refuses_unknown = context.config.server.refuses_unknown
    _check_names(body, refuses_unknown)
    given = body.get("parameters")
    if given is not None and not isinstance(given, dict):
        raise refuse("parameters", given, "an object")
    parameters = parse_parameters(
        given or {}, Names.LMI, prefix="parameters.", refuse_unknown_names=refuses_unknown
    )
    if parameters.unknown:
        _logger.warning("unknown parameters are ignored: %s", names_in_log(parameters.unknown))
    stream = _stream(body, parameters)
    formatter = parameters["output_formatter"] or context.config.server.output_formatter
    if stream is None and conventions.streams_by_default and not formatter:
        stream = True
    return BodyFields(parameters, _framing(context, parameters, stream))


def _stream(body: Body, parameters: Parameters) -> bool | None:
    """Return `stream` of the body or of its parameters, where LMI reads it. Raises `InvalidField` if they differ."""
    inner: bool | None = parameters["stream"]
    if body.get("stream") is None:
        return inner
    outer = check_flag("stream", body["stream"])
    if inner not in (None, outer):
        raise refuse(
            "parameters.stream", inner, f"{as_json(outer)}, as in the field stream, or only one of the two"
        )
    return outer


def _check_names(body: Body, refuses_unknown: bool) -> None:
    unknown = [name for name in body if name not in (*_FIELDS, "adapters")]
    for name in (*unknown, "adapters"):
        refuse_unsupported(name, body.get(name), Names.LMI)
    if unknown and not refuses_unknown:
        _logger.warning("unknown fields are ignored: %s", names_in_log(unknown))
    elif unknown:
        name = unknown[0]
        if name in rows(Names.LMI):
            raise InvalidField(
                name, f'must be inside \'parameters\', as in {{"parameters": {{"{name}": ...}}}}'
            )
        raise refuse_unknown(name, name, body[name], _FIELDS)
    model_name(body.get("model"))


def _framing(context: ApiContext, parameters: Parameters, stream: bool | None) -> Framing | None:
    """Choose the framing by the request's `output_formatter`, else its Accept header, else the server's option.

    `stream: true` turns json into JSON lines. `stream: false` ignores the header.
    """
    accepted = None if stream is False else _accepted_format()
    formatter = parameters["output_formatter"] or accepted or context.config.server.output_formatter
    framing = _FRAMINGS.get(formatter or "json")
    return JSON_LINES if framing is None and stream else framing


def _accepted_format() -> str | None:
    # Media types are case-insensitive and may have parameters. Quality 0 means "not acceptable".
    accepted = (
        name.partition(";")[0].strip().lower() for name, quality in request.accept_mimetypes if quality
    )
    return next((_ACCEPTED_FORMATS[name] for name in accepted if name in _ACCEPTED_FORMATS), None)


def _read_prompts(context: ApiContext, body: Body, fields: BodyFields) -> tuple[Prompt, ...]:
    inputs = body.get("inputs", MISSING)
    by_formatter = context.formatter is not None and context.formatter.reads_bodies
    if by_formatter and isinstance(inputs, list) and inputs and is_integer(inputs[0]):
        limit = truncation_limit(context, fields.parameters)
        prompt = prompt_of_token_ids(context, "inputs", inputs, limit)
        return (replace(prompt, text=context.text.decode(prompt.token_ids, skip_special_tokens=False)),)
    accepted = "a string that is not empty (or 'messages' for a chat, 'prompt' for completions)"
    if context.capabilities.prompt_lists:
        accepted += f", or a list of 1 to {MAX_PROMPTS} such strings"
    elif isinstance(inputs, list):
        raise refuse("inputs", inputs, f"{accepted}; {engines_with('prompt_lists')} takes lists of strings")
    texts = texts_by_field("inputs", inputs, accepted)
    if fields.streamed and len(texts) > 1:
        raise InvalidField(
            "inputs",
            f"given {len(texts)} prompts with a streamed answer (stream, Accept or output_formatter); accepted: one "
            "prompt in a stream, or several without one",
        )
    return encode_prompts(context, texts, fields.parameters, add_special_tokens=True)


def _report(fields: BodyFields, counts: AnswerCounts) -> LogprobReport:
    parameters = fields.parameters
    prompt: int | None = parameters["prompt_logprobs"]
    if prompt is None and parameters["decoder_input_details"]:
        prompt = 0
    # Beam search reports no log-probabilities. A request that asks for them is rejected.
    each = (shows_details(parameters, counts.best_of) or fields.streamed) and parameters["num_beams"] == 1
    return LogprobReport(each or counts.ranked, parameters["top_n_tokens"], prompt)


def _shows_prompt(fields: BodyFields, counts: AnswerCounts) -> bool:
    parameters = fields.parameters
    return bool(parameters["return_full_text"] or shows_details(parameters, counts.best_of))


def _make_reply(
    context: ApiContext, fields: BodyFields, requests: Sequence[GenerationRequest], _: Conventions
) -> LmiReply:
    check_repeated_prompts(requests, sum(len(one.prompt) * one.n for one in requests))
    return LmiReply(requests, fields.parameters, fields.framing, as_list=context.capabilities.prompt_lists)


_INPUTS = BodyFormat(
    read_fields=_read_fields,
    read_prompts=_read_prompts,
    report=_report,
    make_reply=_make_reply,
    default_max_new_tokens=DEFAULT_MAX_NEW_TOKENS,
    best_of_is_n=True,
    streams_choices=False,
    shows_prompt=_shows_prompt,
)
_BODY_FORMATS = {"messages": CHAT, "prompt": COMPLETIONS, "inputs": _INPUTS}
"""Formats of bodies by the field of the prompt."""
