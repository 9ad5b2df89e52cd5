"""The value of `chat_template_kwargs`: variables that a chat template may read."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from lmi_server.values.base import BadValueError

_MAX_VARIABLES = 16
_MAX_CHARS = 4096
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RESERVED = frozenset(
    {
        *(
            "messages",
            "tools",
            "documents",
            "add_generation_prompt",
            "continue_final_message",
            "chat_template",
        ),
        *("tokenize", "raise_exception", "strftime_now"),
    }
)
"""Names that the server sets, or that would have to change more than variables of the template."""


class TemplateVariables:
    """An object with a few strings, numbers, booleans or nulls, such as `{"enable_thinking": false}`."""

    accepted: ClassVar[str] = (
        f"an object of at most {_MAX_VARIABLES} variables of the chat template, each a string of at most {_MAX_CHARS}"
        " characters, a number, true, false or null"
    )

    def from_json(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > _MAX_VARIABLES:
            raise BadValueError("is not a small object")
        for name, one in value.items():
            if not _NAME.fullmatch(name) or name in _RESERVED or name.endswith("_token"):
                raise BadValueError(
                    "is not a variable",
                    accepted="other names; this one is the server's own",
                    place=f".{name[:64]}",
                )
            if not isinstance(one, str | int | float | None) or (
                isinstance(one, str) and len(one) > _MAX_CHARS
            ):
                raise BadValueError("is not a scalar", place=f".{name}")
        return value
