"""The options table for people: rows for `lmi options`, and docs/options.md.

`python -m lmi_server.properties.reference > docs/options.md` writes the page; a test holds it against the table.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from lmi_server.properties.environment import variables_of
from lmi_server.properties.option import Option, Status
from lmi_server.properties.options import OPTIONS
from lmi_server.values.scalars import Choice
from lmi_server.values.show import as_option

OPEN_DEFAULTS = {
    "option.model_id": "the folder itself",
    "option.output_formatter": "by the request",
    "option.revision": "none",
    "option.max_queued_tokens": "no bound",
    "option.step_trace": "none",
}
"""What no value means, where it is not decided at the start."""

_HEAD = """# Options

<!-- Generated: python -m lmi_server.properties.reference > docs/options.md. Edit lmi_server/properties/options.csv. -->

Every key that a `serving.properties` may hold. An unknown key is refused with the nearest known name
(`lmi serve --lenient`, or `LMI_LENIENT=true`, warns instead), a bad value with its line and what is accepted.

Who wins where a key is given more than once, the strongest first: the `SAGEMAKER_*` variables below,
`serving.properties`, `OPTION_*`, other names that stand for options, `SERVING_*`, the default. In the file the last
of two equal keys wins. Empty variables count as unset.

The file is in the Java properties format: ISO-8859-1, `#` and `!` begin a comment only at the start of a line, quotes
are part of a value. Blanks at the end of a value belong to it; from numbers, booleans and words they are removed
with a warning, in free text they stay.
"""


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option, all as text."""

    name: str
    accepted: str
    default: str
    engine: str
    help: str
    status: str
    aliases: tuple[str, ...]
    variables: tuple[str, ...]
    example: str


def rows() -> tuple[OptionRow, ...]:
    """Every option in the table's order, those that work first."""
    return tuple(_row(option) for option in OPTIONS)


def markdown() -> str:
    """The whole reference page."""
    working = [option for option in OPTIONS if option.status is Status.WORKS]
    other = [option for option in OPTIONS if option.status in (Status.REFUSED, Status.NO_EFFECT)]
    parts = [_HEAD, "## Options that work\n", *map(_section, working)]
    parts += ["## Known to LMI, not done here\n"]
    parts += [
        "Refused with the reason, except for values of which ignoring changes nothing: these are accepted with a"
        " note.\n"
    ]
    parts += ["| key | accepted without effect | what it is | why |", "|---|---|---|---|"]
    parts += [_known_row(option) for option in other]
    return "\n".join(parts) + "\n"


def _row(option: Option) -> OptionRow:
    return OptionRow(
        name=option.name,
        accepted=option.type.accepted,
        default=_default(option),
        engine=option.engine,
        help=option.help,
        status=option.status.value,
        aliases=option.aliases,
        variables=_variables(option),
        example=f"{option.name}={option.example}" if option.example else "",
    )


def _variables(option: Option) -> tuple[str, ...]:
    names = (option.name, *option.aliases)
    return tuple(dict.fromkeys(variable for name in names for variable in variables_of(name)))


def _default(option: Option) -> str:
    return as_option(option.default) or OPEN_DEFAULTS.get(
        option.name, "decided at start" if option.target else ""
    )


def _section(option: Option) -> str:
    row = _row(option)
    engine = "" if row.engine == "any" else f" (engine={row.engine})"
    lines = [f"### `{row.name}`\n", f"{row.help}{engine}\n"]
    facts = {
        "accepted": row.accepted,
        "default": row.default,
        "example": f"`{row.example}`",
        "other names": ", ".join(f"`{alias}`" for alias in row.aliases),
        "environment": ", ".join(f"`{variable}`" for variable in row.variables),
    }
    lines += [f"- {label}: {text}" for label, text in facts.items() if text]
    if isinstance(option.type, Choice):
        refused = option.type.refused
        for reason in dict.fromkeys(refused.values()):
            values = ", ".join(f"`{value}`" for value in refused if refused[value] == reason)
            lines.append(f"- refused: {values} ({reason})")
    return "\n".join(lines) + "\n"


def _known_row(option: Option) -> str:
    if option.status is Status.NO_EFFECT:
        accepted = option.type.accepted
    else:
        accepted = ", ".join(f"`{as_option(value)}`" for value in option.neutral) or "none"
    names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
    return "| " + " | ".join((names, accepted, option.help, option.reason)) + " |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
