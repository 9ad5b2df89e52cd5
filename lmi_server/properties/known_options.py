"""Keys that LMI knows and this server does not act on, read from `known_options.csv`.

One line for each key: other names stand after the first one. `accepted` lists the values that change nothing here,
and every other value is refused with the reason; `any` accepts every valid value with a note. A value that ends in
`...` stands for all texts that begin so. A key leaves the file when it is built.
"""

from __future__ import annotations

import csv
from importlib.resources import files

from lmi_server.properties.option import Option, Status
from lmi_server.values.base import ValueType
from lmi_server.values.scalars import Bool, Choice, Float, Int, Text

_TYPES: dict[str, ValueType] = {
    "text": Text(),
    "secret": Text(),
    "bool": Bool(),
    "count": Int(0, 2**31 - 1),
    "number": Float(-1e12, 1e12),
    "share": Float(0, 1, above=True),
    "GiB": Float(0, 1e6, unit="GiB"),
    "seconds": Float(0, 1e9, unit="seconds"),
}


def _type(text: str) -> ValueType:
    """Return the type that a cell names: one of `_TYPES`, `low..high`, or words such as `auto/string`."""
    if text in _TYPES:
        return _TYPES[text]
    if "/" in text:
        return Choice(tuple(text.split("/")))
    low, _, high = text.partition("..")
    return Int(int(low), int(high))


def _option(row: dict[str, str]) -> Option:
    name, *aliases = row["key"].split()
    type_ = _type(row["type"])
    no_effect = row["accepted"] == "any"
    return Option(
        name,
        type_,
        row["help"],
        status=Status.NO_EFFECT if no_effect else Status.REFUSED,
        aliases=tuple(aliases),
        reason=row["reason"],
        neutral=() if no_effect else tuple(map(type_.from_text, row["accepted"].split())),
        lmi_default=row["default"],
        secret=row["type"] == "secret",
    )


def _read() -> tuple[Option, ...]:
    text = (files(__package__) / "known_options.csv").read_text(encoding="utf-8")
    return tuple(map(_option, csv.DictReader(text.splitlines())))


KNOWN_OPTIONS = _read()
