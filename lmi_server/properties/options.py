"""The table of options, read from `options.csv`: one line for each key that this server supports or knows.

The table defines parsing, the `OPTION_*` and `SERVING_*` variables, validation, suggestions, `lmi check`, `lmi options`
and the pages of options in docs/. To add an option, add a field with a default and a docstring to the class in
`lmi_server/config.py` that owns it, and a line with the same name to a group of the table.

A line `# Heading` begins a group of options. Columns: `key`, the name followed by aliases; `status`, see `Status`;
`engine`, if only one engine uses the option; `type`, see `value_type`; `default`, see `Option.default_text`; `example`;
`neutral`, the accepted values of a rejected option, which change nothing; `help`; `reason`, why the option is
rejected, or `words: why` for single values.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib.resources import files

from lmi_server.properties.option import Option, Status
from lmi_server.values.base import ValueType
from lmi_server.values.scalars import Bool, Choice, Float, Int, PathText, Text
from lmi_server.values.show import masked

_SIMPLE: dict[str, ValueType] = {"text": Text(), "secret": Text(), "bool": Bool(), "count": Int(0, 2**31 - 1)}
_INT = re.compile(r"(power of two )?(-?\d+)\.\.(-?\d+)((?: or \w+)*)")
_FLOAT = re.compile(r"number (>?)([^.]\S*?)\.\.(\S+)(?: (\w+))?")


def value_type(cell: str, refused: dict[str, str]) -> ValueType:
    """Return the type that a cell describes. `refused`: rejected words, each with the reason.

    A cell is a key of `_SIMPLE`; `text: ...` or `path: ...` with the accepted values; `low..high`, optionally after
    `power of two` or before `or word`; `number low..high unit`, with `>` before an excluded minimum; or words such as
    `auto/fp32`, with synonyms such as `float32=fp32`. Words that are all lower case may be written in any case.
    """
    if cell in _SIMPLE:
        return _SIMPLE[cell]
    kind, _, accepted = cell.partition(": ")
    if accepted:
        return PathText(accepted) if kind == "path" else Text(accepted)
    if match := _INT.fullmatch(cell):
        other = tuple(match[4].split(" or ")[1:])
        return Int(int(match[2]), int(match[3]), other, power_of_two=bool(match[1]))
    if match := _FLOAT.fullmatch(cell):
        return Float(float(match[2]), float(match[3]), match[4] or "", exclude_minimum=bool(match[1]))
    words, *synonyms = cell.split()
    return Choice(
        tuple(words.split("/")),
        dict(synonym.split("=") for synonym in synonyms),
        refused,
        any_case=words == words.lower(),
    )


def _refused_words(reason: str) -> dict[str, str]:
    """Return the reason for each rejected word in `word word: why | word: why`."""
    pairs = (part.partition(": ") for part in reason.split(" | "))
    return {word: why for words, _, why in pairs if why for word in words.split()}


def _option(row: dict[str, str], group: str) -> Option:
    name, *aliases = row["key"].split()
    works = row["status"] == Status.WORKS
    type_ = value_type(row["type"], _refused_words(row["reason"]) if works else {})
    return Option(
        name,
        type_,
        row["help"],
        Status(row["status"]),
        engine=row["engine"] or "any",
        aliases=tuple(aliases),
        example=row["example"],
        reason="" if works else row["reason"],
        neutral=tuple(map(type_.from_text, row["neutral"].split())),
        default_text=row["default"],
        secret=row["type"] == "secret",
        group=group,
    )


def _read() -> tuple[Option, ...]:
    text = (files(__package__) / "options.csv").read_text(encoding="utf-8")
    header, *rows = csv.reader(text.splitlines())
    options, group = [], ""
    for row in rows:
        if row[0].startswith("# "):
            group = row[0].removeprefix("# ")
        else:
            options.append(_option(dict(zip(header, row, strict=True)), group))
    return tuple(options)


OPTIONS = _read()


@cache
def by_name() -> dict[str, Option]:
    """Return every option under its name and under each of its aliases."""
    return {name: option for option in OPTIONS for name in (option.name, *option.aliases)}


def shown(key: str, text: str) -> str:
    """Return a value for messages: `***` if it may be a secret, as it may be under a key that is misspelled."""
    option = by_name().get(key)
    return masked(key, text, option is None or option.secret)
