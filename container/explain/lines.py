"""Explain the lines of a serving.properties and its effective values."""

from __future__ import annotations

from collections.abc import Iterator

from container.explain.report import LineExplained
from container.explain.resolve import Resolved
from lmi_server.properties.examination import EffectiveValue, Examination
from lmi_server.properties.grammar import Entry
from lmi_server.properties.handler import is_server_option
from lmi_server.properties.option import Option, Status
from lmi_server.properties.options import by_name, shown
from lmi_server.properties.reference import COMPUTED
from lmi_server.values.show import masked

_DEPRECATED = {
    "option.s3url": "deprecated: LMI no longer reads it",
    "option.enable_streaming": "deprecated by LMI since 0.25",
}
"""Deprecated keys and what to print for them."""


def explain_lines(found: Examination, plan: Resolved | None) -> Iterator[LineExplained]:
    """Explain each line of the file. plan: the resolved configuration, or None."""
    for entry in found.entries:
        option = by_name().get(entry.key)
        show = masked if _is_for_handler(entry, option, found) else shown
        text = f"{entry.key} = {show(entry.key, entry.value)}"
        yield LineExplained(entry.line, text, _explanation(entry, option, found, plan))


def _is_for_handler(entry: Entry, option: Option | None, found: Examination) -> bool:
    return found.handler is not None and not is_server_option(option.name if option else entry.key)


def _explanation(entry: Entry, option: Option | None, found: Examination, plan: Resolved | None) -> str:
    if any(problem.line == entry.line for problem in found.problems):
        return "see the error below"
    if _is_for_handler(entry, option, found):
        return "passed to the handler"
    if option is None:
        may_be_own = found.has_invalid_handler and entry.key.startswith("option.")
        return "not checked; the handler may use it" if may_be_own else "unknown key; ignored"
    alias = f"alias of {option.name}. " if entry.key != option.name else ""
    if old := _DEPRECATED.get(entry.key):
        alias = f"{old}. {alias}"
    again = [other.line for other in found.entries if other.key == entry.key and other.line > entry.line]
    if again:
        return f"{alias}not used: line {again[-1]} sets the key again"
    effective = found.values.get(option.name)
    if effective is not None and effective.source.line != entry.line:
        return f"{alias}not used: {effective.place} takes precedence"
    effect = {
        Status.WORKS: "",
        Status.NO_EFFECT: f" Accepted without effect: {option.reason}.",
        Status.REFUSED: " Accepted: this value changes nothing here.",
    }
    return f"{alias}{option.help}{effect[option.status]}{_decision(option.name, plan)}"


def _decision(name: str, plan: Resolved | None) -> str:
    """Return a sentence with the resolved value of an open option; empty if there is none."""
    if plan is None or not plan.values.get(name):
        return ""
    return f" Becomes {plan.values[name]} ({plan.origins[name].removeprefix('computed: ')})."


def decided(value: EffectiveValue, plan: Resolved | None) -> EffectiveValue:
    """Return the value as resolved, with the reason. A value that is still open says so."""
    if plan is not None and value.key in plan.origins:
        setting = f" ({value.source} says {value.value})" if value.value and value.source != "default" else ""
        text = plan.values[value.key] or f"({COMPUTED})"
        return EffectiveValue(value.key, text, f"{plan.origins[value.key]}{setting}", value.note)
    if value.value:
        return value
    meaning = by_name()[value.key].default_text or COMPUTED
    return EffectiveValue(value.key, f"({meaning})", value.source, value.note)
