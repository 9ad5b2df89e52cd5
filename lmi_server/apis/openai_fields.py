"""The fields that OpenAI's bodies have in common, checked: `model`, `stream`, `stream_options`, the parameters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmi_server.apis.checks import check_flag, refuse
from lmi_server.apis.parameter import Names, Parsed
from lmi_server.apis.parse_parameters import parse_parameters
from lmi_server.values.show import names_in_log

_logger = logging.getLogger(__name__)

DEFAULT_MODEL = "lmi"
_MAX_MODEL_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class OpenAiFields:
    """What a body says besides its prompt."""

    model: str
    """Any name is accepted; the answer repeats it."""
    stream: bool
    include_usage: bool
    parameters: Parsed


_SWITCHES = {"tools": "tool_choice", "functions": "function_call"}
"""A field that the other one, where it is `none`, takes out of use."""


def parse_fields(
    body: Mapping[str, Any], names: Names, prompt_field: str, own_defaults: Mapping[str, Any]
) -> OpenAiFields:
    """Check all fields but `prompt_field`. Names that nobody knows are logged and ignored, as OpenAI's clients expect.

    `own_defaults`: parameters, by key, that stand in for the table's own.

    Raises `InvalidField`.
    """
    stream = check_flag("stream", body.get("stream"))
    own = (prompt_field, "model", "stream", "stream_options")
    unused = [name for name, switch in _SWITCHES.items() if body.get(switch) == "none"]
    rest = {name: value for name, value in body.items() if name not in own and name not in unused}
    parsed = parse_parameters(rest, names, own_defaults=own_defaults, refuse_unknown_names=False)
    if parsed.unknown:
        _logger.info("unknown fields are ignored: %s", names_in_log(parsed.unknown))
    return OpenAiFields(
        _model(body.get("model")), stream, _include_usage(body.get("stream_options"), stream), parsed
    )


def _model(value: Any) -> str:
    if value is None:
        return DEFAULT_MODEL
    if not isinstance(value, str) or len(value.encode()) > _MAX_MODEL_NAME_BYTES:
        raise refuse("model", value, f"any string of at most {_MAX_MODEL_NAME_BYTES} bytes")
    return value


def _include_usage(options: Any, stream: bool) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict):
        raise refuse("stream_options", options, "an object")
    if not stream:
        raise refuse("stream_options", options, "null, or leave it out, as 'stream' is not true")
    return check_flag("stream_options.include_usage", options.get("include_usage"))
