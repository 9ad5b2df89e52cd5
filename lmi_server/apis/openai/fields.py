"""Fields that OpenAI's bodies share: `model`, `stream`, `stream_options` and the parameters."""

from __future__ import annotations

import logging
from typing import Any

from lmi_server.apis.base import ApiContext
from lmi_server.apis.parameters.checks import check_flag, refuse
from lmi_server.apis.parameters.parse import parse_parameters
from lmi_server.apis.parameters.row import Names
from lmi_server.apis.pipeline import Body, BodyFields, Conventions
from lmi_server.errors import InvalidField
from lmi_server.values.show import names_in_log

_logger = logging.getLogger(__name__)

DEFAULT_MODEL = "lmi"
_MAX_MODEL_NAME_BYTES = 256
_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats")
_SWITCHES = {"tools": "tool_choice", "functions": "function_call"}
"""Fields that are ignored if another field is `none`, each with the other field."""
_PATHS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "inputs": "/invocations"}
"""Path of a body by the field of its prompt."""


def read_fields(
    names: Names, prompt_field: str, context: ApiContext, body: Body, conventions: Conventions
) -> BodyFields:
    """Check all fields except `prompt_field`. Unknown names are logged and ignored, as OpenAI's clients expect, except
    for completions on `/invocations`, where `option.unknown_parameters` decides.

    Raises `InvalidField`.
    """
    _check_body_kind(prompt_field, body)
    stream = body.get("stream")
    streamed = conventions.streams_by_default if stream is None else check_flag("stream", stream)
    own = (prompt_field, "model", "stream", "stream_options")
    unused = [name for name, switch in _SWITCHES.items() if body.get(switch) == "none"]
    # What a field selects from is checked, and so refused, before the field.
    ordered = sorted(body, key=lambda name: name not in _SWITCHES)
    rest = {name: body[name] for name in ordered if name not in own and name not in unused}
    samples = names is Names.CHAT or conventions.completions_sample
    parameters = parse_parameters(
        rest,
        names,
        default_overrides=context.openai_defaults if samples else {},
        refuse_unknown_names=not samples and context.config.server.refuses_unknown,
    )
    options = body.get("stream_options")
    include_usage, continuous_usage = (_stream_option(name, options, streamed) for name in _STREAM_OPTIONS)
    ignored = [f"stream_options.{name}" for name in options or () if name not in _STREAM_OPTIONS]
    if unknown := [*parameters.unknown, *ignored]:
        _logger.info("unknown fields are ignored: %s", names_in_log(unknown))
    framing = conventions.openai_framing() if streamed else None
    continuous_usage = include_usage and continuous_usage
    return BodyFields(parameters, framing, model_name(body.get("model")), include_usage, continuous_usage)


def _check_body_kind(prompt_field: str, body: Body) -> None:
    """Raise `InvalidField` if the body lacks its prompt and has that of another path."""
    if prompt_field in body:
        return
    for field, path in _PATHS.items():
        if field in body:
            raise InvalidField(prompt_field, f"missing; a body with {field!r} is for {path}")


def model_name(value: Any) -> str:
    """Return the model name, which answers repeat. A front of several models routes by it. Raises `InvalidField`."""
    if value is None:
        return DEFAULT_MODEL
    if not isinstance(value, str) or len(value.encode()) > _MAX_MODEL_NAME_BYTES:
        raise refuse("model", value, f"any string of at most {_MAX_MODEL_NAME_BYTES} bytes")
    return value


def _stream_option(name: str, options: Any, streamed: bool) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict):
        raise refuse("stream_options", options, "an object")
    if not streamed:
        raise refuse("stream_options", options, "null, or leave it out, as 'stream' is not true")
    return check_flag(f"stream_options.{name}", options.get(name))
