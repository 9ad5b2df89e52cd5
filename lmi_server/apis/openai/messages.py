"""OpenAI's chat messages, each reduced to a role and a text."""

from __future__ import annotations

from typing import Any

from lmi_server.apis.parameters.checks import refuse
from lmi_server.errors import InvalidField

_MAX_MESSAGES = 4096
_ROLES = {
    "system": "system",
    # OpenAI's newer name of the system role. Chat templates do not know it.
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_MAX_NAME_BYTES = 256


def parse_messages(value: Any) -> list[dict[str, str]]:
    """Check messages and return them in the form that chat templates expect.

    Raises `InvalidField`.
    """
    if not isinstance(value, list) or not value:
        raise refuse("messages", value, "a list of at least 1 message")
    if len(value) > _MAX_MESSAGES:
        raise InvalidField("messages", f"given {len(value)} messages; accepted: at most {_MAX_MESSAGES}")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _message(field: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise refuse(field, value, "an object with 'role' and 'content'")
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise refuse(f"{field}.role", role, "one of " + ", ".join(_ROLES))
    for name in ("tool_calls", "function_call", "audio"):
        if value.get(name) not in (None, []):
            raise refuse(f"{field}.{name}", value[name], "null, or leave it out; this is not supported")
    message = {"role": _ROLES[role], "content": _content(f"{field}.content", value.get("content"))}
    author = value.get("name")
    if author is not None:
        if not isinstance(author, str) or len(author.encode()) > _MAX_NAME_BYTES:
            raise refuse(f"{field}.name", author, f"a string of at most {_MAX_NAME_BYTES} bytes")
        message["name"] = author
    return message


def _content(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise refuse(field, value, "a string, or a list of at least 1 text part")
    return "\n".join(_part(f"{field}[{index}]", part) for index, part in enumerate(value))


def _part(field: str, value: Any) -> str:
    if not isinstance(value, dict):
        raise refuse(field, value, 'an object {"type": "text", "text": ...}')
    if value.get("type") != "text":
        raise refuse(f"{field}.type", value.get("type"), '"text"; other kinds of content are not supported')
    text = value.get("text")
    if not isinstance(text, str):
        raise refuse(f"{field}.text", text, "a string")
    return text
