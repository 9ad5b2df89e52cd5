"""`POST /v1/chat/completions`, OpenAI's chat. `/invocations` accepts the same body."""

from __future__ import annotations

from functools import partial

from flask import Blueprint, Response

from lmi_server.apis.base import ApiContext
from lmi_server.apis.openai.chat_reply import ChatReply
from lmi_server.apis.openai.fields import read_fields
from lmi_server.apis.openai.messages import parse_messages
from lmi_server.apis.parameters.checks import MISSING, refuse
from lmi_server.apis.parameters.combinations import AnswerCounts
from lmi_server.apis.parameters.row import Names
from lmi_server.apis.parameters.sampling import LogprobReport
from lmi_server.apis.pipeline import OPENAI, Body, BodyFields, BodyFormat, parse
from lmi_server.apis.prompts import (
    Prompt,
    encode_prompts,
    max_prompt_chars,
    too_many_chars,
    truncation_limit,
)
from lmi_server.apis.serve import answer
from lmi_server.errors import InvalidField
from lmi_server.text.chat_template import RenderedTooLong


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("openai_chat", __name__)

    @blueprint.post("/v1/chat/completions")
    def chat_completions() -> Response:
        return answer(context, partial(parse, body_format=CHAT, conventions=OPENAI))

    return blueprint


def _read_prompts(context: ApiContext, body: Body, fields: BodyFields) -> tuple[Prompt, ...]:
    messages = parse_messages(body.get("messages", MISSING))
    if context.text.chat_template is None:
        raise _no_template(context.text.template_names)
    max_chars = max_prompt_chars(context, truncation_limit(context, fields.parameters))
    try:
        text = context.text.chat_template.render(
            messages, max_chars, fields.parameters["chat_template_kwargs"]
        )
    except RenderedTooLong as error:
        raise too_many_chars(context, "messages", f"more than {max_chars}") from error
    # The chat template adds the special tokens itself.
    return encode_prompts(context, {"messages": text}, fields.parameters, add_special_tokens=False)


def _no_template(names: tuple[str, ...]) -> InvalidField:
    """Create the error for a model without a default chat template. `names`: its other templates."""
    missing = "no chat template"
    if names:
        missing = f"no chat template named 'default' (found: {', '.join(names)})"
    return InvalidField(
        "messages",
        f"the model has {missing}; accepted: 'prompt' on /v1/completions, or 'inputs' on /invocations",
    )


def _report(fields: BodyFields, counts: AnswerCounts) -> LogprobReport:
    parameters = fields.parameters
    top = parameters["top_logprobs"]
    if top and not parameters["logprobs"]:
        raise refuse(parameters.fields["top_logprobs"], top, "0, or with 'logprobs' that is true")
    return LogprobReport(parameters["logprobs"] or counts.ranked, top, parameters["prompt_logprobs"])


CHAT = BodyFormat(
    read_fields=partial(read_fields, Names.CHAT, "messages"),
    read_prompts=_read_prompts,
    report=_report,
    make_reply=lambda _, fields, requests, conventions: ChatReply(fields, requests, conventions),
    default_max_new_tokens=None,
    continues_prompt=False,
)
