"""Determine which setting of each option takes effect, and parse its value."""

from __future__ import annotations

from lmi_server.properties import environment, grammar
from lmi_server.properties.environment import Rank, RawSetting
from lmi_server.properties.examination import Examination
from lmi_server.properties.option import Option, OptionValue, Status, neutral_text
from lmi_server.properties.options import by_name, shown
from lmi_server.properties.problems import Problem
from lmi_server.values.base import BadValueError, Scalar, is_one_of
from lmi_server.values.nearest import is_typo, nearest
from lmi_server.values.show import masked

_MAX_SUGGESTIONS = 20
"""Unknown keys for which the nearest known one is searched, which takes milliseconds each."""


def group_by_option(
    settings: list[RawSetting],
) -> tuple[dict[str, tuple[Option, list[RawSetting]]], list[Problem]]:
    """Return the settings by option, and a problem for each setting with an unknown key."""
    options = by_name()
    known: dict[str, tuple[Option, list[RawSetting]]] = {}
    unknown: list[Problem] = []
    for setting in settings:
        if (option := options.get(setting.key)) is not None:
            known.setdefault(option.name, (option, []))[1].append(setting)
            continue
        near = nearest(setting.key, _similar_kind(setting.key)) if len(unknown) < _MAX_SUGGESTIONS else ""
        if near and (variable := setting.source.variable):
            near = nearest(variable, environment.variables_of(near)) or near
        text = shown(setting.key, setting.text)
        unknown.append(Problem(setting.source, setting.key, text, "unknown key", nearest=near))
    return known, unknown


def _similar_kind(key: str) -> list[str]:
    """Return the known keys to suggest. Unsupported ones are only suggested for typos.

    After `option.`, these are options and the same name without `option.`.
    """
    return [
        name
        for name, option in by_name().items()
        if not key.startswith("option.") or name.startswith("option.") or name == key.removeprefix("option.")
        if option.status is Status.WORKS or is_typo(key, name)
    ]


def resolve_option(option: Option, settings: list[RawSetting], found: Examination) -> None:
    """Read the setting that takes effect for an option. Note overridden settings and report conflicts."""
    winner, *losers = sorted(settings, key=lambda setting: setting.rank)
    _report_overridden(option, winner, losers, found)
    if winner.rank is Rank.SAGEMAKER:
        # The environment overrides the file, but an invalid line of the file is still reported.
        for setting in losers:
            if setting.rank is Rank.FILE:
                _value(option, setting, found)
    if any(entry.line == winner.source.line and entry.ends_in_blanks for entry in found.entries):
        effect = "kept, because they may be intended" if option.type.keep_trailing_blanks else "removed"
        reason = f"the value ends in blanks, which are part of it in the properties format; {effect}"
        masked_text = masked(winner.key, winner.text, option.secret)
        found.warnings.append(str(Problem(winner.source, winner.key, masked_text, reason)))
    value = _value(option, winner, found)
    if value is not None:
        masked_text = masked(winner.key, _strip_blanks(option, winner), option.secret)
        found.values[option.name] = OptionValue(option, value, masked_text, winner.source, winner.key)


def _report_overridden(
    option: Option, winner: RawSetting, losers: list[RawSetting], found: Examination
) -> None:
    for loser in losers:
        masked_text = masked(loser.key, loser.written, option.secret)
        if loser.text.strip() == winner.text.strip():
            continue
        if loser.rank is Rank.FILE and winner.rank is Rank.FILE:
            same = f"{winner.key} on line {winner.source.line} is the same option with another value"
            reason = f"{same}; remove one of the two lines"
            found.problems.append(Problem(loser.source, loser.key, masked_text, reason))
        else:
            found.notes.append(
                f"{loser.source}: {masked_text} is not used, because {winner.source} takes precedence"
            )


def _strip_blanks(option: Option, setting: RawSetting) -> str:
    return setting.text if option.type.keep_trailing_blanks else setting.text.strip(" \t\f")


def _value(option: Option, setting: RawSetting, found: Examination) -> Scalar | None:
    """Return the parsed value. If it is invalid, report the problem and return None."""
    text = _strip_blanks(option, setting)
    masked_text = masked(setting.key, setting.original or text, option.secret)
    accepted_values = setting.accepted or option.type.accepted

    def refuse(reason: str, accepted: str = "", near: str = "") -> None:
        found.problems.append(Problem(setting.source, setting.key, masked_text, reason, accepted, near))

    if setting.source.variable and (reason := grammar.placeholder(text)):
        refuse(reason)
        return None
    if not text.strip():
        refuse("has no value; remove the line to use the default", accepted_values)
        return None
    try:
        value = option.type.from_text(text)
    except BadValueError as error:
        refuse(error.reason, accepted_values, error.nearest)
        return None
    if option.status is Status.REFUSED and not is_one_of(value, option.neutral):
        refuse(f"known to LMI but not supported: {option.reason}", neutral_text(option))
        return None
    return value
