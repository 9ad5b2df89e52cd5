"""`POST /invocations`: LMI's schema (`inputs`, `parameters`, `stream`), or a body of OpenAI's.

A body with `messages` is a chat, one with `prompt` is for completions; both are answered in OpenAI's shapes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, request

from lmi_server.apis import openai_chat, openai_completions
from lmi_server.apis.base import ApiContext, Call
from lmi_server.apis.checks import check_flag, refuse, refuse_unknown
from lmi_server.apis.combinations import Choices, check_beams, check_prompt_report, choices, service
from lmi_server.apis.conventions import LMI
from lmi_server.apis.lmi_reply import LmiReply, Told
from lmi_server.apis.parameter import Names, Parsed
from lmi_server.apis.parameters import DEFAULT_MAX_NEW_TOKENS, rows
from lmi_server.apis.parse_parameters import parse_parameters, refuse_unsupported
from lmi_server.apis.prompts import (
    MAX_PROMPTS,
    check_number_of_prompts,
    encode_prompts,
    generation_requests,
)
from lmi_server.apis.sampling import Report
from lmi_server.apis.serve import answer
from lmi_server.errors import InvalidField
from lmi_server.streaming import JSON_LINES, SSE, Framing
from lmi_server.values.show import names_in_log

_logger = logging.getLogger(__name__)

_FIELDS = ("inputs", "parameters", "stream", "adapters", "messages", "prompt")
_PROMPT_FIELDS = ("messages", "prompt", "inputs")
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
        return invoke(context)

    return blueprint


def invoke(context: ApiContext) -> Response:
    """Answer the current request as `/invocations` does. Raises `EngineError`."""
    attributes = _custom_attributes()
    response = answer(context, _parse)
    if attributes is not None:
        response.headers[_ATTRIBUTES_HEADER] = attributes
    return response


def _parse(context: ApiContext, body: Mapping[str, Any]) -> Call:
    if adapter := request.headers.get(_ADAPTER_HEADER):
        raise InvalidField(
            _ADAPTER_HEADER, f"given {adapter[:80]!r}, but LoRA adapters are not supported; accepted: none"
        )
    if body.get("stream") is None and request.headers.get(_FORWARDED_API_HEADER) == _STREAMING_API:
        # The platform says by which of its calls the request came; it speaks where the body is silent.
        body = {**body, "stream": True}
    given = [name for name in _PROMPT_FIELDS if body.get(name) is not None]
    if len(given) > 1:
        raise InvalidField(
            given[1], f"given beside {given[0]!r}; accepted: one of {', '.join(_PROMPT_FIELDS)}"
        )
    kind = given[0] if given else next((name for name in _PROMPT_FIELDS if name in body), "inputs")
    if kind == "messages":
        return openai_chat.parse(context, body, LMI)
    if kind == "prompt":
        return openai_completions.parse(context, body, LMI)
    return _parse_inputs(context, body)


def _parse_inputs(context: ApiContext, body: Mapping[str, Any]) -> Call:
    _check_fields(context, body)
    texts = _texts(context, body.get("inputs"))
    parsed = _parameters(context, body.get("parameters"))
    framing = _framing(context, parsed, body.get("stream"))
    streamed = framing is not None
    if streamed and len(texts) > 1:
        raise InvalidField(
            "inputs",
            f"given {len(texts)} prompts with a streamed answer (stream, Accept or output_formatter); accepted: one "
            "prompt in a stream, or several without one",
        )
    many = choices(parsed, num_prompts=len(texts), streamed=streamed, n_follows=True, streams_n=False)
    told = _told(parsed, many)
    report = _report(parsed, many, told, streamed)
    check_beams(context, parsed, many, report, streamed=streamed)
    check_prompt_report(context, parsed, "decoder_input_details", "prompt_logprobs", streamed=streamed)
    requests = generation_requests(
        context,
        encode_prompts(context, texts, parsed, add_special_tokens=True),
        parsed,
        report=report,
        many=many,
        default_max_new_tokens=DEFAULT_MAX_NEW_TOKENS,
        cut_to_context=LMI.cut_to_context,
        continues_prompt=True,
    )
    as_list = _takes_lists(context)
    reply = LmiReply(requests, told, parsed["return_full_text"], as_list, framing)
    return Call(requests, reply, service(context, parsed))


def _told(parsed: Parsed, many: Choices) -> Told:
    """What is asked for by its name comes with details, though these are not asked for; so does what is found by
    comparing several answers.
    """
    compares = many.best_of > 1 or parsed["num_beams"] > 1
    prompt = parsed["decoder_input_details"] or parsed["prompt_logprobs"] is not None
    return Told(
        details=parsed["details"] or compares or prompt or parsed["top_n_tokens"] > 0,
        prefill=parsed["decoder_input_details"],
        prompt_logprobs=parsed["prompt_logprobs"] is not None,
        top_tokens=parsed["top_n_tokens"] > 0,
    )


def _report(parsed: Parsed, many: Choices, told: Told, streamed: bool) -> Report:
    prompt: int | None = parsed["prompt_logprobs"]
    if prompt is None and told.prefill:
        prompt = 0
    # Beams have none; where they are asked for by name, that is refused.
    each = (told.details or streamed) and parsed["num_beams"] == 1
    return Report(each or many.best_of > many.n, parsed["top_n_tokens"], prompt)


def _takes_lists(context: ApiContext) -> bool:
    """The dynamic form, of engine=Python: `inputs` may be a list, and the answer is one."""
    return context.config.engine == "Python"


def _texts(context: ApiContext, inputs: Any) -> dict[str, str]:
    """The prompts by field."""
    accepted = "a string that is not empty (or 'messages' for a chat, 'prompt' for completions)"
    if not _takes_lists(context):
        if not isinstance(inputs, str) or not inputs:
            hint = "; engine=Python takes lists of strings" if isinstance(inputs, list) else ""
            raise refuse("inputs", inputs, accepted + hint)
        return {"inputs": inputs}
    if isinstance(inputs, str) and inputs:
        return {"inputs": inputs}
    if not isinstance(inputs, list) or not inputs:
        raise refuse("inputs", inputs, f"{accepted}, or a list of 1 to {MAX_PROMPTS} such strings")
    check_number_of_prompts("inputs", inputs)
    texts = {f"inputs[{index}]": text for index, text in enumerate(inputs)}
    for field, text in texts.items():
        if not isinstance(text, str) or not text:
            raise refuse(field, text, "a string that is not empty")
    return texts


def _refuses_unknown(context: ApiContext) -> bool:
    return context.config.server.unknown_parameters != "warn"


def _check_fields(context: ApiContext, body: Mapping[str, Any]) -> None:
    unknown = [name for name in body if name not in _FIELDS]
    for name in unknown:
        refuse_unsupported(name, body[name], Names.LMI)
    if unknown and not _refuses_unknown(context):
        _logger.warning("unknown fields are ignored: %s", names_in_log(unknown))
    elif unknown:
        name = unknown[0]
        if name in rows(Names.LMI):
            raise InvalidField(name, f'belongs inside \'parameters\', as {{"parameters": {{"{name}": ...}}}}')
        raise refuse_unknown(name, name, body[name], _FIELDS)
    if body.get("adapters") not in (None, "", [], [""]):
        raise refuse("adapters", body["adapters"], "null, or leave it out; LoRA adapters are not supported")


def _parameters(context: ApiContext, parameters: Any) -> Parsed:
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        raise refuse("parameters", parameters, "an object")
    refuses = _refuses_unknown(context)
    parsed = parse_parameters(parameters, Names.LMI, prefix="parameters.", refuse_unknown_names=refuses)
    if parsed.unknown:
        _logger.warning("unknown parameters are ignored: %s", names_in_log(parsed.unknown))
    return parsed


def _framing(context: ApiContext, parsed: Parsed, stream: Any) -> Framing | None:
    """The request's own formatter, then its Accept header, then the server's; `stream: true` turns json into lines, and
    `stream: false` takes the word from the header. Raises `InvalidField`.
    """
    streams = check_flag("stream", stream)
    accepted = _accepted_format() if streams or stream is None else None
    formatter = parsed["output_formatter"] or accepted or context.config.server.output_formatter
    framing = _FRAMINGS.get(formatter or "json")
    return JSON_LINES if framing is None and streams else framing


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
