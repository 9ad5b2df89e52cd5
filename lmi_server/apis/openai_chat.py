"""`POST /v1/chat/completions`, OpenAI's chat; the same body is understood by `/invocations`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response

from lmi_server.apis.base import ApiContext, Call
from lmi_server.apis.checks import parse_parameters, refuse
from lmi_server.apis.messages import parse_messages
from lmi_server.apis.openai_reply import ChatReply
from lmi_server.apis.parameters import Names
from lmi_server.apis.prompts import encode_prompt, generation_request, max_prompt_chars, too_many_chars
from lmi_server.apis.serve import answer
from lmi_server.errors import ErrorForm, InvalidField
from lmi_server.request_log import current_record
from lmi_server.text.chat_template import RenderedTooLong

_logger = logging.getLogger(__name__)

DEFAULT_MODEL = "lmi"
_MAX_MODEL_NAME_BYTES = 256
_OWN_FIELDS = ("messages", "model", "stream", "stream_options")


def api(context: ApiContext) -> Blueprint:
    blueprint = Blueprint("openai_chat", __name__)

    @blueprint.post("/v1/chat/completions")
    def chat_completions() -> Response:
        return answer(context, parse)

    return blueprint


def parse(context: ApiContext, body: Mapping[str, Any], error_form: ErrorForm = ErrorForm.OPENAI) -> Call:
    """A chat body. `error_form`: whose words a failing stream ends with; it goes by the path, not by the body.

    Raises `engines.errors.InvalidRequest`.
    """
    model = _model(body.get("model"))
    stream = _flag("stream", body.get("stream"))
    include_usage = _include_usage(body.get("stream_options"), stream)
    parameters = {name: value for name, value in body.items() if name not in _OWN_FIELDS}
    parsed = parse_parameters(parameters, Names.OPENAI, refuse_unknown=False)
    if parsed.unknown:
        _logger.info("unknown chat fields are ignored: %s", ", ".join(map(ascii, parsed.unknown))[:400])
    messages = parse_messages(body.get("messages"))
    if context.text.chat_template is None:
        raise InvalidField("messages", "the model has no chat template; accepted: 'inputs' on /invocations")
    max_chars = max_prompt_chars(context)
    try:
        prompt = context.text.chat_template.render(messages, max_chars)
    except RenderedTooLong as error:
        raise too_many_chars(context, "messages", f"more than {max_chars}") from error
    # The template itself writes the special tokens.
    token_ids = encode_prompt(context, "messages", prompt, add_special_tokens=False)
    request = generation_request(
        context,
        prompt=prompt,
        token_ids=token_ids,
        parsed=parsed,
        default_max_new_tokens=None,
        logprobs=False,
        continues_prompt=False,
    )
    reply = ChatReply(
        id=f"chatcmpl-{current_record().id}",
        model=model,
        created=int(time.time()),
        num_prompt_tokens=len(token_ids),
        streamed=stream,
        include_usage=include_usage,
        error_form=error_form,
    )
    return Call(request, reply)


def _model(value: Any) -> str:
    if value is None:
        return DEFAULT_MODEL
    if not isinstance(value, str) or len(value.encode()) > _MAX_MODEL_NAME_BYTES:
        raise refuse("model", value, f"any string of at most {_MAX_MODEL_NAME_BYTES} bytes")
    return value


def _flag(field: str, value: Any) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise refuse(field, value, "true or false")
    return value


def _include_usage(options: Any, stream: bool) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict):
        raise refuse("stream_options", options, "an object")
    if not stream:
        raise refuse("stream_options", options, "null, or leave it out, as 'stream' is not true")
    return _flag("stream_options.include_usage", options.get("include_usage"))
