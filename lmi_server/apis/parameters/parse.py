"""Parsing of the parameters in a body according to the parameter table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lmi_server.apis.parameters.checks import refuse_unknown
from lmi_server.apis.parameters.row import Names, Parameter, Parameters
from lmi_server.apis.parameters.table import defaults, rows
from lmi_server.errors import InvalidField
from lmi_server.values.base import is_one_of
from lmi_server.values.show import as_json


def parse_parameters(
    body: Mapping[str, Any],
    names: Names,
    *,
    default_overrides: Mapping[str, Any] = MappingProxyType({}),
    prefix: str = "",
    refuse_unknown_names: bool = True,
) -> Parameters:
    """Check the parameters in `body` and return their values.

    `default_overrides`: values by key that override the table's defaults. `prefix`: place of the parameters in the
    request, for error messages (`parameters.`). Unknown names are rejected, or listed in the result.

    Raises `InvalidField`.
    """
    table = rows(names)
    values = {**defaults(names), **default_overrides}
    fields: dict[str, str] = {}
    unknown: list[str] = []
    for name, value in body.items():
        row = row_of(table, name)
        if row is None:
            if refuse_unknown_names:
                supported = (known for known, one in table.items() if one.neutral is None)
                raise refuse_unknown(prefix + name, name, value, supported)
            unknown.append(name)
        elif value is not None and not is_one_of(value, row.unset_values):
            checked = row.check(prefix + name, value)
            if row.name in fields and values[row.name] != checked:
                raise InvalidField(
                    prefix + name,
                    f"given {as_json(value)}, but {fields[row.name]} sets the same parameter to another value; "
                    "accepted: only one of the two names",
                )
            values[row.name] = checked
            fields[row.name] = prefix + name
    return Parameters(values, body, fields, tuple(unknown))


def row_of(table: Mapping[str, Parameter], name: str) -> Parameter | None:
    """Return the row of a parameter. All names `guided_*` are constraints, so none of them may be ignored."""
    return table.get(name) or (table.get("guided_json") if name.startswith("guided_") else None)


def refuse_unsupported(field: str, value: Any, names: Names) -> None:
    """Check a field that is not used. Raises `InvalidField` if it requests something that is not supported."""
    row = row_of(rows(names), field)
    if row is not None and row.neutral is not None and value is not None:
        row.check(field, value)
