"""`POST /v1/completions`, OpenAI's completions. `/invocations` accepts the same body."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flask import Blueprint, Response

from lmi_server.apis.base import ApiContext
from lmi_server.apis.openai.completions_reply import CompletionsReply
from lmi_server.apis.openai.fields import read_fields
from lmi_server.apis.parameters.checks import MISSING, refuse
from lmi_server.apis.parameters.combinations import (
    CHARS_PER_TOKEN_ID,
    AnswerCounts,
    check_repeated_prompts,
)
from lmi_server.apis.parameters.row import Names
from lmi_server.apis.parameters.sampling import LogprobReport
from lmi_server.apis.parameters.table import DEFAULT_MAX_TOKENS
from lmi_server.apis.pipeline import OPENAI, Body, BodyFields, BodyFormat, Conventions, parse
from lmi_server.apis.prompts import (
    Prompt,
    encode_prompts,
    prompt_of_token_ids,
    prompts_by_field,
    texts_by_field,
    truncation_limit,
)
from lmi_server.apis.serve import answer
from lmi_server.generation.answer_text import GenerationRequest
from lmi_server.values.base import is_integer

_ACCEPTED = "a string that is not empty, a list of such strings, a list of token ids, or a list of such lists"


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("openai_completions", __name__)

    @blueprint.post("/v1/completions")
    def completions() -> Response:
        return answer(context, partial(parse, body_format=COMPLETIONS, conventions=OPENAI))

    return blueprint


def _read_fields(context: ApiContext, body: Body, conventions: Conventions) -> BodyFields:
    fields = read_fields(Names.COMPLETIONS, "prompt", context, body, conventions)
    parameters = fields.parameters
    if parameters["max_new_tokens"] == 0 and not parameters["echo"]:
        accepted = "an integer of at least 1, or 0 with 'echo' that is true"
        raise refuse(parameters.fields["max_new_tokens"], 0, accepted)
    return fields


def _read_prompts(context: ApiContext, body: Body, fields: BodyFields) -> tuple[Prompt, ...]:
    """Read one text, one list of token ids, or a list of either."""
    value, limit = body.get("prompt", MISSING), truncation_limit(context, fields.parameters)
    if isinstance(value, list) and value and is_integer(value[0]):
        return (prompt_of_token_ids(context, "prompt", value, limit),)
    if isinstance(value, list) and value and isinstance(value[0], list):
        items = prompts_by_field("prompt", value)
        return tuple(prompt_of_token_ids(context, field, item, limit) for field, item in items.items())
    texts = texts_by_field("prompt", value, _ACCEPTED)
    return encode_prompts(context, texts, fields.parameters, add_special_tokens=True)


def _report(fields: BodyFields, counts: AnswerCounts) -> LogprobReport:
    parameters = fields.parameters
    logprobs: int | None = parameters["logprobs"]
    prompt: int | None = parameters["prompt_logprobs"]
    if parameters["echo"] and logprobs is not None:
        prompt = max(logprobs, prompt or 0)
    return LogprobReport(logprobs is not None or counts.ranked, logprobs or 0, prompt)


def _make_reply(
    context: ApiContext, fields: BodyFields, requests: Sequence[GenerationRequest], conventions: Conventions
) -> CompletionsReply:
    echoed: list[str] = []
    for request in requests:
        echoed += [_echoed(context, request, fields)] * request.n
    num_chars = sum(map(len, echoed))
    if fields.parameters["return_token_ids"]:
        num_chars += CHARS_PER_TOKEN_ID * sum(len(one.prompt_token_ids) * one.n for one in requests)
    check_repeated_prompts(requests, num_chars)
    return CompletionsReply(fields, requests, conventions, echoed)


def _echoed(context: ApiContext, request: GenerationRequest, fields: BodyFields) -> str:
    """Return the text before each answer: nothing, the prompt's text, or the text of its token ids if they were cut."""
    if not fields.parameters["echo"]:
        return ""
    if request.prompt and not request.truncated:
        return request.prompt
    return context.text.decode(request.prompt_token_ids, request.rules.skip_special_tokens)


COMPLETIONS = BodyFormat(
    read_fields=_read_fields,
    read_prompts=_read_prompts,
    report=_report,
    make_reply=_make_reply,
    default_max_new_tokens=DEFAULT_MAX_TOKENS,
    shows_prompt=lambda fields, _: fields.parameters["echo"],
)
