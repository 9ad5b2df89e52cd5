"""`POST /v1/completions`, OpenAI's completions; the same body is understood by `/invocations`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response

from lmi_server.apis.base import ApiContext, Call
from lmi_server.apis.checks import refuse
from lmi_server.apis.openai_completions_reply import CompletionsReply
from lmi_server.apis.openai_envelope import make_envelope
from lmi_server.apis.openai_fields import parse_fields
from lmi_server.apis.parameters import DEFAULT_MAX_TOKENS, Names, Parsed
from lmi_server.apis.prompts import (
    Prompt,
    check_length,
    check_number_of_prompts,
    encode_prompts,
    generation_request,
    temperature,
)
from lmi_server.apis.serve import answer
from lmi_server.errors import ErrorForm, InvalidField

_ACCEPTED = "a string that is not empty, a list of such strings, a list of token ids, or a list of such lists"


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("openai_completions", __name__)

    @blueprint.post("/v1/completions")
    def completions() -> Response:
        return answer(context, parse)

    return blueprint


def parse(context: ApiContext, body: Mapping[str, Any], error_form: ErrorForm = ErrorForm.OPENAI) -> Call:
    """A completions body: one choice for each prompt. `error_form`: whose words a failing stream ends with.

    Raises `engines.errors.InvalidRequest`.
    """
    fields = parse_fields(body, Names.COMPLETIONS, "prompt")
    parsed = fields.parameters
    _check_logprobs(parsed)
    logprobs, echo = parsed["logprobs"], parsed["echo"]
    requests = tuple(
        generation_request(
            context,
            prompt,
            parsed,
            default_max_new_tokens=DEFAULT_MAX_TOKENS,
            logprobs=logprobs is not None,
            continues_prompt=True,
        )
        for prompt in _prompts(context, body.get("prompt"), echo)
    )
    envelope = make_envelope("cmpl", "text_completion", "text_completion", fields, requests, error_form)
    echoed = tuple(request.prompt if echo else "" for request in requests)
    return Call(requests, CompletionsReply(envelope, fields.stream, echoed, logprobs))


def _check_logprobs(parsed: Parsed) -> None:
    if parsed["logprobs"] is None:
        return
    if parsed["echo"]:
        raise InvalidField(
            "logprobs",
            f"given {parsed['logprobs']} with echo, but the prompt's own are not reported; accepted: one of the two",
        )
    if parsed["logprobs"] and (temperature(parsed) > 0 or parsed["repetition_penalty"] != 1.0):
        raise InvalidField(
            "logprobs",
            f"given {parsed['logprobs']}, but only of the chosen token the log-probability is known, and with sampling "
            f"or repetition_penalty it need not be the likeliest; accepted: 0",
        )


def _prompts(context: ApiContext, value: Any, echo: bool) -> tuple[Prompt, ...]:
    if isinstance(value, str) and value:
        return encode_prompts(context, {"prompt": value}, add_special_tokens=True)
    if not isinstance(value, list) or not value:
        raise refuse("prompt", value, _ACCEPTED)
    if _is_id(value[0]):
        return (_of_ids(context, "prompt", value, echo),)
    check_number_of_prompts("prompt", value)
    items = {f"prompt[{index}]": item for index, item in enumerate(value)}
    if isinstance(value[0], list):
        return tuple(_of_ids(context, field, item, echo) for field, item in items.items())
    for field, item in items.items():
        if not isinstance(item, str) or not item:
            raise refuse(field, item, "a string that is not empty, as 'prompt' is a list of strings")
    return encode_prompts(context, items, add_special_tokens=True)


def _of_ids(context: ApiContext, field: str, value: Any, echo: bool) -> Prompt:
    """A prompt that comes as tokens: nothing is put before or after them. `echo`: whether its text is needed."""
    if not isinstance(value, list):
        raise refuse(field, value, "a list of token ids, as 'prompt' is a list of lists")
    check_length(context, field, len(value))
    limit = context.text.vocabulary_size
    for index, item in enumerate(value):
        if not _is_id(item) or not 0 <= item < limit:
            raise refuse(f"{field}[{index}]", item, f"a token id, a whole number from 0 to {limit - 1}")
    return Prompt(field, context.text.decode(value) if echo else "", tuple(value))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
