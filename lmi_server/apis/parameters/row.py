"""Types for the table of request parameters. The rows are in `table.py` and `unused.py`."""

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
    """Column of names that a body uses."""

    LMI = "lmi"
    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row of the table. JSON null always means that the parameter is not set."""

    name: str
    """Key of the parsed value in `Parameters`."""
    type: JsonType
    lmi: tuple[str, ...] = ()
    openai: tuple[str, ...] = ()
    """Names in both chats and completions."""
    chat: tuple[str, ...] = ()
    completions: tuple[str, ...] = ()
    default: Any = None
    unset_values: tuple[Any, ...] = ()
    """Values besides null that mean that the parameter is not set."""
    neutral: tuple[Any, ...] | None = None
    """If not None, the parameter is not supported and only these values, which change nothing, are accepted."""
    reason: str = ""
    """Why all other values are rejected."""

    def names(self, names: Names) -> tuple[str, ...]:
        """Return the names of the parameter in one column."""
        if names is Names.LMI:
            return self.lmi
        return self.openai + (self.chat if names is Names.CHAT else self.completions)

    def check(self, field: str, value: Any) -> Any:
        """Check a value and return it in the program's own type. Raises `InvalidField`."""
        if self.neutral is None:
            return check(field, value, self.type, "".join(f" or {as_json(one)}" for one in self.unset_values))
        if is_one_of(_simplified(value), self.neutral):
            return value
        accepted = " or ".join(map(as_json, self.neutral)) or "null, or leave it out"
        raise InvalidField(field, f"given {as_json(value)}, but {self.reason}; accepted: {accepted}")


def _simplified(value: Any) -> Any:
    """Return an object without its null members, as clients write fields that are not set, and a list of equal items
    with only one of them: some lists, such as `adapters`, have one for each prompt."""
    if isinstance(value, dict):
        return {name: member for name, member in value.items() if member is not None}
    if isinstance(value, list) and all(item == value[0] for item in value):
        return value[:1]
    return value


def everywhere(*names: str, type: JsonType, **columns: Any) -> Parameter:  # noqa: A002
    """Return a row with the same names for all bodies. The first name is the key."""
    return Parameter(names[0], type, lmi=names, openai=names, **columns)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Checked parameters of a body, with defaults for the parameters that it does not set."""

    values: Mapping[str, Any]
    given: Mapping[str, Any]
    """The parameters as they are in the body, including unknown ones."""
    fields: Mapping[str, str]
    """Field of the body that sets each parameter, by key."""
    unknown: tuple[str, ...] = ()
    """Unknown names, if they are not rejected."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]
