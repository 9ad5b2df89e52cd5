"""The value of `chat_template_kwargs`: variables that a chat template may read."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from lmi_server.values.base import BadValueError
from lmi_server.values.show import as_json

_MAX_VARIABLES = 16
_MAX_CHARS = 4096
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "raise_exception", "strftime_now"),
    }
)
"""Names that the server sets, or that would have to change more than variables of the template."""
_VALUES = f"a string of at most {_MAX_CHARS} characters, a number, true, false or null"
_NAMES = "names of lower-case letters, digits and underscores, other than special tokens and " + ", ".join(
    sorted(_RESERVED)
)


class TemplateVariables:
    """An object with a few strings, numbers, booleans or nulls, such as `{"enable_thinking": false}`."""

    accepted: ClassVar[str] = (
        f"an object of at most {_MAX_VARIABLES} variables of the chat template, each {_VALUES}"
    )

    def from_json(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > _MAX_VARIABLES:
            raise BadValueError(f"is not an object of at most {_MAX_VARIABLES} variables")
        for name, one in value.items():
            if not _NAME.fullmatch(name) or name in _RESERVED or name.endswith("_token"):
                raise BadValueError(
                    "is not an allowed variable name", received=f"the name {name[:64]!r}", accepted=_NAMES
                )
            if not isinstance(one, str | int | float | None) or (
                isinstance(one, str) and len(one) > _MAX_CHARS
            ):
                raise BadValueError(
                    "is not a scalar", place=f".{name}", received=as_json(one), accepted=_VALUES
                )
        return value
