"""`POST /v1/completions`, OpenAI's completions; the same body is understood by `/invocations`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response

from lmi_server.apis.base import ApiContext, Call
from lmi_server.apis.checks import refuse
from lmi_server.apis.combinations import Choices, check_beams, check_prompt_report, choices, service
from lmi_server.apis.conventions import OPENAI, Conventions
from lmi_server.apis.openai_completions_reply import ChoiceShape, CompletionsReply
from lmi_server.apis.openai_envelope import make_envelope
from lmi_server.apis.openai_fields import parse_fields
from lmi_server.apis.parameter import Names, Parsed
from lmi_server.apis.parameters import DEFAULT_MAX_TOKENS
from lmi_server.apis.prompts import (
    Prompt,
    check_length,
    check_number_of_prompts,
    encode_prompts,
    generation_requests,
    truncated,
)
from lmi_server.apis.sampling import Report
from lmi_server.apis.serve import answer
from lmi_server.continuation import GenerationRequest

_ACCEPTED = "a string that is not empty, a list of such strings, a list of token ids, or a list of such lists"


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("openai_completions", __name__)

    @blueprint.post("/v1/completions")
    def completions() -> Response:
        return answer(context, parse)

    return blueprint


def parse(context: ApiContext, body: Mapping[str, Any], conventions: Conventions = OPENAI) -> Call:
    """Parse a completions body: one choice for each prompt.

    Raises `engines.errors.InvalidRequest`.
    """
    defaults = context.openai_defaults if conventions.completions_sample else {}
    fields = parse_fields(body, Names.COMPLETIONS, "prompt", defaults)
    parsed = fields.parameters
    echo: bool = parsed["echo"]
    prompts = _prompts(context, body.get("prompt"), parsed)
    many = choices(parsed, num_prompts=len(prompts), streamed=fields.stream, n_follows=False, streams_n=True)
    report = _report(parsed, many)
    check_beams(context, parsed, many, report, streamed=fields.stream)
    check_prompt_report(context, parsed, "prompt_logprobs", streamed=fields.stream)
    if echo:
        check_prompt_report(context, parsed, "logprobs", streamed=False)
    requests = generation_requests(
        context,
        prompts,
        parsed,
        report=report,
        many=many,
        default_max_new_tokens=DEFAULT_MAX_TOKENS,
        cut_to_context=conventions.cut_to_context,
        continues_prompt=True,
    )
    envelope = make_envelope(
        "cmpl", "text_completion", "text_completion", fields, requests, conventions.error_form
    )
    echoed = tuple(
        _echoed(context, request, parsed["truncate"]) if echo else ""
        for request in requests
        for _ in range(many.n)
    )
    shape = ChoiceShape(parsed["logprobs"], parsed["prompt_logprobs"] is not None)
    reply = CompletionsReply(envelope, fields.stream, echoed, shape)
    return Call(requests, reply, service(context, parsed))


def _report(parsed: Parsed, many: Choices) -> Report:
    logprobs: int | None = parsed["logprobs"]
    prompt: int | None = parsed["prompt_logprobs"]
    if parsed["echo"] and logprobs is not None:
        prompt = max(logprobs, prompt or 0)
    return Report(logprobs is not None or many.best_of > many.n, logprobs or 0, prompt)


def _echoed(context: ApiContext, request: GenerationRequest, truncate: int | None) -> str:
    """The prompt as it came; the text of the tokens that are left of it, where it came as tokens or was cut."""
    if request.prompt and truncate is None:
        return request.prompt
    return context.text.decode(request.prompt_token_ids, request.rules.skip_special_tokens)


def _prompts(context: ApiContext, value: Any, parsed: Parsed) -> tuple[Prompt, ...]:
    if isinstance(value, str) and value:
        return encode_prompts(context, {"prompt": value}, parsed, add_special_tokens=True)
    if not isinstance(value, list) or not value:
        raise refuse("prompt", value, _ACCEPTED)
    if _is_id(value[0]):
        return (_of_ids(context, "prompt", value, parsed["truncate"]),)
    check_number_of_prompts("prompt", value)
    items = {f"prompt[{index}]": item for index, item in enumerate(value)}
    if isinstance(value[0], list):
        return tuple(_of_ids(context, field, item, parsed["truncate"]) for field, item in items.items())
    for field, item in items.items():
        if not isinstance(item, str) or not item:
            raise refuse(field, item, "a string that is not empty, as 'prompt' is a list of strings")
    return encode_prompts(context, items, parsed, add_special_tokens=True)


def _of_ids(context: ApiContext, field: str, value: Any, truncate: int | None) -> Prompt:
    """A prompt that comes as tokens: nothing is put before or after them."""
    if not isinstance(value, list):
        raise refuse(field, value, "a list of token ids, as 'prompt' is a list of lists")
    check_length(context, field, len(value) if truncate is None else min(len(value), truncate))
    limit = context.text.vocabulary_size
    for index, item in enumerate(value):
        if not _is_id(item) or not 0 <= item < limit:
            raise refuse(f"{field}[{index}]", item, f"a token id from 0 to {limit - 1}")
    return Prompt(field, "", truncated(tuple(value), truncate))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
