"""`POST /v1/chat/completions`, OpenAI's chat; the same body is understood by `/invocations`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response

from lmi_server.apis.base import ApiContext, Call
from lmi_server.apis.checks import refuse
from lmi_server.apis.combinations import Choices, check_beams, check_prompt_report, choices, service
from lmi_server.apis.conventions import OPENAI, Conventions
from lmi_server.apis.messages import parse_messages
from lmi_server.apis.openai_chat_reply import ChatReply
from lmi_server.apis.openai_envelope import make_envelope
from lmi_server.apis.openai_fields import parse_fields
from lmi_server.apis.parameter import Names, Parsed
from lmi_server.apis.prompts import (
    Prompt,
    encode_prompts,
    generation_requests,
    max_prompt_chars,
    too_many_chars,
)
from lmi_server.apis.sampling import Report
from lmi_server.apis.serve import answer
from lmi_server.errors import InvalidField
from lmi_server.text.chat_template import RenderedTooLong


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("openai_chat", __name__)

    @blueprint.post("/v1/chat/completions")
    def chat_completions() -> Response:
        return answer(context, parse)

    return blueprint


def parse(context: ApiContext, body: Mapping[str, Any], conventions: Conventions = OPENAI) -> Call:
    """Parse a chat body.

    Raises `engines.errors.InvalidRequest`.
    """
    fields = parse_fields(body, Names.CHAT, "messages", context.openai_defaults)
    parsed = fields.parameters
    many = choices(parsed, num_prompts=1, streamed=fields.stream, n_follows=False, streams_n=True)
    report = _report(parsed, many)
    check_beams(context, parsed, many, report, streamed=fields.stream)
    check_prompt_report(context, parsed, "prompt_logprobs", streamed=fields.stream)
    requests = generation_requests(
        context,
        [_prompt(context, body.get("messages"), parsed)],
        parsed,
        report=report,
        many=many,
        default_max_new_tokens=None,
        cut_to_context=conventions.cut_to_context,
        continues_prompt=False,
    )
    envelope = make_envelope(
        "chatcmpl", "chat.completion", "chat.completion.chunk", fields, requests, conventions.error_form
    )
    reply = ChatReply(envelope, fields.stream, many.n, parsed["logprobs"])
    return Call(requests, reply, service(context, parsed))


def _report(parsed: Parsed, many: Choices) -> Report:
    if parsed["top_logprobs"] and not parsed["logprobs"]:
        raise refuse(
            parsed.fields["top_logprobs"], parsed["top_logprobs"], "0, or with 'logprobs' that is true"
        )
    logprobs = parsed["logprobs"] or many.best_of > many.n
    return Report(logprobs, parsed["top_logprobs"], parsed["prompt_logprobs"])


def _prompt(context: ApiContext, value: Any, parsed: Parsed) -> Prompt:
    messages = parse_messages(value)
    if context.text.chat_template is None:
        raise InvalidField("messages", "the model has no chat template; accepted: 'inputs' on /invocations")
    max_chars = max_prompt_chars(context)
    try:
        text = context.text.chat_template.render(messages, max_chars)
    except RenderedTooLong as error:
        raise too_many_chars(context, "messages", f"more than {max_chars}") from error
    # The template itself writes the special tokens.
    (prompt,) = encode_prompts(context, {"messages": text}, parsed, add_special_tokens=False)
    return prompt
