"""Documentation of the options: rows for `lmi options`, and the page docs/options.md.

`python -m lmi_server.properties.reference > docs/options.md` writes the page. A test compares it with the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from lmi_server.properties.environment import variables_of
from lmi_server.properties.option import Option, Status
from lmi_server.properties.options import OPTIONS
from lmi_server.values.scalars import Choice
from lmi_server.values.show import as_option

OPEN_DEFAULTS = {
    "option.model_id": "the folder itself",
    "option.output_formatter": "chosen by each request",
    "option.revision": "none",
    "option.max_queued_tokens": "no limit",
    "option.rolling_batch": "auto, or disable with engine=Python or batch_size above 1",
    "maxWorkers": "minWorkers with a handler, else no limit",
    "option.step_trace": "none",
}
"""Meaning of an unset option, for options that are not resolved at start."""

_HEAD = """# Options

<!-- Generated: python -m lmi_server.properties.reference > docs/options.md. Edit lmi_server/properties/options.csv. -->

All keys of `serving.properties`. An unknown key is refused with the nearest known name
(`lmi serve --lenient`, or `LMI_LENIENT=true`, warns instead), an invalid value with its line and the accepted values.

Precedence where a key is given more than once, highest first: the `SAGEMAKER_*` variables below,
`serving.properties`, `OPTION_*`, other names that stand for options, `SERVING_*`, the default. In the file the last
of two equal keys wins. Empty variables count as unset.

The file is in the Java properties format: ISO-8859-1, `#` and `!` begin a comment only at the start of a line, quotes
are part of a value. Trailing blanks are part of a value; they are removed from numbers, booleans and keywords with
a warning, and kept in free text.
"""
_KNOWN_HEAD = """## Not supported

LMI options that this server does not support. They are refused with the reason, except for values that change nothing,
which are accepted with a note.

| key | accepted without effect | what it is | why |
|---|---|---|---|"""


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option, with its attributes as text."""

    name: str
    accepted: str
    default: str
    engine: str
    help: str
    status: str
    variables: tuple[str, ...]


def rows() -> tuple[OptionRow, ...]:
    """Return all options in the table's order, supported options first."""
    return tuple(
        OptionRow(
            option.name,
            option.type.accepted,
            _default(option),
            option.engine,
            option.help,
            option.status.value,
            _variables(option),
        )
        for option in OPTIONS
    )


def markdown() -> str:
    """Return the complete reference page."""
    working = [_section(option) for option in OPTIONS if option.status is Status.WORKS]
    known = [_known_row(option) for option in OPTIONS if option.status is not Status.WORKS]
    return "\n".join([_HEAD, "## Supported options\n", *working, _KNOWN_HEAD, *known]) + "\n"


def _default(option: Option) -> str:
    unset = OPEN_DEFAULTS.get(option.name) or as_option(option.default)
    return unset or ("decided at start" if option.target else "")


def _variables(option: Option) -> tuple[str, ...]:
    names = (option.name, *option.aliases)
    return tuple(dict.fromkeys(variable for name in names for variable in variables_of(name)))


def _section(option: Option) -> str:
    engine = "" if option.engine == "any" else f" (engine={option.engine})"
    facts = {
        "accepted": option.type.accepted,
        "default": _default(option),
        "example": f"`{option.name}={option.example}`",
        "other names": _quoted(option.aliases),
        "environment": _quoted(_variables(option)),
    }
    lines = [f"### `{option.name}`\n", f"{option.help}{engine}\n"]
    lines += [f"- {label}: {text}" for label, text in facts.items() if text]
    if isinstance(option.type, Choice):
        refused = option.type.refused
        for reason in dict.fromkeys(refused.values()):
            values = _quoted(value for value in refused if refused[value] == reason)
            lines.append(f"- refused: {values} ({reason})")
    return "\n".join(lines) + "\n"


def _known_row(option: Option) -> str:
    accepted = _quoted(map(as_option, option.neutral)) or "none"
    if option.status is Status.NO_EFFECT:
        accepted = option.type.accepted
    cells = (_quoted((option.name, *option.aliases)), accepted, option.help, option.reason)
    return "| " + " | ".join(cells) + " |"


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


if __name__ == "__main__":
    sys.stdout.write(markdown())
