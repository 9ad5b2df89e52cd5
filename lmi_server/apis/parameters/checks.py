"""Checks of request fields. Every error names the field, the value found and the accepted values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lmi_server.errors import InvalidField
from lmi_server.values.base import BadValueError, JsonType
from lmi_server.values.nearest import nearest
from lmi_server.values.scalars import Bool
from lmi_server.values.show import as_json

MISSING = object()
"""Value of a field that the body does not have, for `refuse`. A field with null is not missing."""


def refuse(field: str, value: Any, accepted: str) -> InvalidField:
    """Return the error for a value that is not accepted, or for a field that is missing."""
    given = "missing" if value is MISSING else f"given {as_json(value)}"
    return InvalidField(field, f"{given}; accepted: {accepted}")


def refuse_unknown(field: str, name: str, value: Any, known: Iterable[str]) -> InvalidField:
    """Return the error for an unknown name, with the nearest known name."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(names)}"
    return InvalidField(field, f"unknown name, given with value {as_json(value)}; {hint}")


def check(field: str, value: Any, type: JsonType, or_else: str = "") -> Any:  # noqa: A002
    """Check the value of a field. `or_else`: further accepted values, for the error message. Raises `InvalidField`."""
    try:
        return type.from_json(value)
    except BadValueError as error:
        accepted = error.accepted or type.accepted + or_else
        hint = f"; did you mean {error.nearest!r}?" if error.nearest else ""
        text = f"given {error.received or as_json(value)}; accepted: {accepted}{hint}"
        raise InvalidField(field + error.place, text) from error


def check_flag(field: str, value: Any) -> bool:
    """Check a flag, which defaults to false. Raises `InvalidField`."""
    return value is not None and bool(check(field, value, Bool()))
