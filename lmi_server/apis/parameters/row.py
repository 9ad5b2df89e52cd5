"""A row of the table of request parameters. The rows are in `table.py` and `unused.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lmi_server.apis.parameters.checks import check
from lmi_server.errors import InvalidField
from lmi_server.values.base import JsonType, is_one_of
from lmi_server.values.show import as_json


class Names(Enum):
    """Which column of names a body uses."""

    LMI = "lmi"
    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row. JSON null always means that a parameter is not given."""

    name: str
    """Key of the parsed value."""
    type: JsonType
    lmi: tuple[str, ...] = ()
    openai: tuple[str, ...] = ()
    """In chats and in completions."""
    chat: tuple[str, ...] = ()
    completions: tuple[str, ...] = ()
    default: Any = None
    absent: tuple[Any, ...] = ()
    """Values besides null that mean that the parameter is not given."""
    neutral: tuple[Any, ...] | None = None
    """Not None: the parameter is not supported, and only these values, which change nothing, are accepted."""
    reason: str = ""
    """Why every other value is refused."""

    def names(self, names: Names) -> tuple[str, ...]:
        """Return the names under which bodies of one column may give it."""
        if names is Names.LMI:
            return self.lmi
        return self.openai + (self.chat if names is Names.CHAT else self.completions)

    def check(self, field: str, value: Any) -> Any:
        """Check a value and return it as the program uses it. Raises `InvalidField`."""
        if self.neutral is None:
            return check(field, value, self.type, "".join(f" or {as_json(one)}" for one in self.absent))
        if is_one_of(value, self.neutral):
            return value
        accepted = " or ".join(map(as_json, self.neutral)) or "null, or leave it out"
        raise InvalidField(field, f"given {as_json(value)}, but {self.reason}; accepted: {accepted}")


def everywhere(*names: str, type: JsonType, **columns: Any) -> Parameter:  # noqa: A002
    """Make a row that all bodies know by the same names, the first of which is its key."""
    return Parameter(names[0], type, lmi=names, openai=names, **columns)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The checked parameters of a body, with the defaults of those that it does not give."""

    values: Mapping[str, Any]
    fields: Mapping[str, str]
    """Of each parameter that the body gives: the field that gives it."""
    unknown: tuple[str, ...] = ()
    """Unknown names, where they are not refused."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]
