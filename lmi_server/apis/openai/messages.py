"""OpenAI's chat messages, each reduced to the fields that chat templates read."""

from __future__ import annotations

from typing import Any

from lmi_server.apis.parameters.checks import MISSING, refuse
from lmi_server.apis.parameters.row import Names
from lmi_server.apis.parameters.table import rows
from lmi_server.errors import InvalidField

_MAX_MESSAGES = 4096
_MAX_PARTS = 4096
"""Maximum number of text parts of all messages together."""
_ROLES = {
    "system": "system",
    # OpenAI's newer name of the system role. Chat templates do not know it.
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_TYPES = ("text", "input_text", "output_text")
"""Types of a text part. The last two are those of OpenAI's responses."""
_MAX_NAME_BYTES = 256
_REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names of the reasoning in an assistant's message. Clients use any of them, and so do chat templates."""

_CONTINUES = ("prefix", "partial")
"""Other servers' marks of an assistant's message that the answer continues."""


def parse_messages(value: Any) -> list[dict[str, Any]]:
    """Check messages and return them in the form that `ChatTemplate.render` expects.

    A content is a string or a list of text parts. Raises `InvalidField`.
    """
    if not isinstance(value, list) or not value:
        raise refuse("messages", value, "a list of at least 1 message")
    if len(value) > _MAX_MESSAGES:
        raise InvalidField("messages", f"given {len(value)} messages; accepted: at most {_MAX_MESSAGES}")
    contents = [message.get("content") for message in value if isinstance(message, dict)]
    num_parts = sum(len(content) for content in contents if isinstance(content, list))
    if num_parts > _MAX_PARTS:
        raise InvalidField("messages", f"given {num_parts} text parts; accepted: at most {_MAX_PARTS}")
    messages = [_message(f"messages[{index}]", message) for index, message in enumerate(value)]
    if any(message["role"] == "developer" for message in value):
        return _with_one_system_message(messages)
    return messages


def _with_one_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge all system messages into one at the start, because many templates accept no other, as vLLM does."""
    system = [message for message in messages if message["role"] == "system"]
    if len(system) == 1 and messages[0] is system[0]:
        return messages
    texts = filter(None, (_text(message["content"]) for message in system))
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _message(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse(field, value, "an object with 'role' and 'content'")
    role = value.get("role", MISSING)
    if not isinstance(role, str) or role not in _ROLES:
        raise refuse(f"{field}.role", role, "one of " + ", ".join(_ROLES))
    for name in ("tool_calls", "function_call", "audio"):
        if value.get(name) not in (None, []):
            raise refuse(f"{field}.{name}", value[name], "null, or leave it out; this is not supported")
    message = {
        "role": _ROLES[role],
        "content": _content(f"{field}.content", value.get("content", MISSING), role),
    }
    author = value.get("name")
    if author is not None:
        if not isinstance(author, str) or len(author.encode()) > _MAX_NAME_BYTES:
            raise refuse(f"{field}.name", author, f"a string of at most {_MAX_NAME_BYTES} bytes")
        message["name"] = author
    if role == "assistant":
        _refuse_continuation(field, value)
        message |= _reasoning(field, value)
    return message


def _refuse_continuation(field: str, message: dict[str, Any]) -> None:
    """Raise `InvalidField` if the answer is to continue this message, as with `continue_final_message`."""
    for name in _CONTINUES:
        if message.get(name) is not None:
            rows(Names.CHAT)["continue_final_message"].check(f"{field}.{name}", message[name])


def _reasoning(field: str, message: dict[str, Any]) -> dict[str, str]:
    """Return the reasoning of an assistant's message under all names; empty without any."""
    for name in _REASONING:
        reasoning = message.get(name)
        if reasoning is None:
            continue
        if not isinstance(reasoning, str):
            raise refuse(f"{field}.{name}", reasoning, "a string")
        return dict.fromkeys(_REASONING, reasoning)
    return {}


def _content(field: str, value: Any, role: str) -> str | list[dict[str, str]]:
    if isinstance(value, str):
        return value
    if value is None or (role == "assistant" and value in (MISSING, [])):
        return ""  # OpenAI's answers with a `refusal` have no content
    if not isinstance(value, list) or not value:
        raise refuse(field, value, "a string, or a list of at least 1 text part")
    texts = [_part(f"{field}[{index}]", part, role) for index, part in enumerate(value)]
    return [{"type": "text", "text": text} for text in texts]


def _part(field: str, value: Any, role: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise refuse(field, value, 'a string, or an object {"type": "text", "text": ...}')
    kind = value.get("type", MISSING)
    if kind not in _TEXT_TYPES and (kind != "refusal" or role != "assistant"):
        raise refuse(f"{field}.type", kind, '"text"; other kinds of content are not supported')
    name = "refusal" if kind == "refusal" else "text"
    text = value.get(name, MISSING)
    if not isinstance(text, str):
        raise refuse(f"{field}.{name}", text, "a string")
    return text
