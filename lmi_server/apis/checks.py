"""Checks of single values against the parameter table.

Every refusal names the field, what was given and what is accepted.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lmi_server.apis.parameter import Kind, Names, Parameter, Parsed
from lmi_server.apis.parameters import defaults, rows
from lmi_server.errors import InvalidField

_SHOWN_CHARS = 80
_MAX_NAME_CHARS = 64
"""Of a name that is compared with the known ones, which are all shorter."""
_MAX_NAMES = 5
_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_IDS_IN_A_LIST = 32


def shown(value: Any) -> str:
    """A value as an error text shows it: JSON, cut to a readable length; no more of it is looked at than is shown."""
    text = json.dumps(_abridged(value, iter(range(_SHOWN_CHARS))))
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def _abridged(value: Any, places: Iterator[int]) -> Any:
    """A value with as many items as there are places left, and with the starts of its texts."""
    match value:
        case str():
            return value[: _SHOWN_CHARS + 1]
        case list():
            return [_abridged(item, places) for _, item in zip(places, value, strict=False)]
        case dict():
            items = zip(places, value.items(), strict=False)
            return {name[: _SHOWN_CHARS + 1]: _abridged(item, places) for _, (name, item) in items}
    return value


def names_shown(names: Sequence[str]) -> str:
    """Names that a client made up, as a log line shows them: the first few, cut to a readable length."""
    few = ", ".join(ascii(name[:_MAX_NAME_CHARS]) for name in names[:_MAX_NAMES])
    return few if len(names) <= _MAX_NAMES else f"{few} and {len(names) - _MAX_NAMES} more"


def refuse(field: str, value: Any, accepted: str) -> InvalidField:
    """The error for a value that is not accepted."""
    return InvalidField(field, f"given {shown(value)}; accepted: {accepted}")


def unknown_field(field: str, name: str, value: Any, known: Iterable[str]) -> InvalidField:
    """The error for a name that nobody knows, with the nearest that somebody does."""
    names = sorted(known)
    near = difflib.get_close_matches(name[:_MAX_NAME_CHARS], names, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
    return InvalidField(field[:200], f"unknown name, given with value {shown(value)}{hint}")


def parse_parameters(
    body: Mapping[str, Any],
    names: Names,
    *,
    own_defaults: Mapping[str, Any] = MappingProxyType({}),
    prefix: str = "",
    refuse_unknown: bool = True,
) -> Parsed:
    """Check the parameters in `body`.

    `own_defaults`: values, by key, that stand in for the table's own. `prefix`: where the parameters stand, for error
    texts (`parameters.`). Unknown names are refused, or listed in the result.

    Raises `InvalidField`.
    """
    table = rows(names)
    values = {**defaults(names), **own_defaults}
    given: dict[str, str] = {}
    unknown: list[str] = []
    for name, value in body.items():
        row = table.get(name)
        if row is None:
            if refuse_unknown:
                raise unknown_field(prefix + name, name, value, supported(names))
            unknown.append(name)
        elif value is not None and not _is_one_of(value, row.nothing):
            checked = check(prefix + name, value, row)
            if row.name in given and values[row.name] != checked:
                raise InvalidField(
                    prefix + name,
                    f"given {shown(value)}, but {given[row.name]} says the same thing with another value; "
                    f"accepted: one of the two names",
                )
            values[row.name] = checked
            given[row.name] = prefix + name
    return Parsed(values, given, tuple(unknown))


def refuse_unsupported(field: str, value: Any, names: Names) -> None:
    """Check a field that is not read. Raises `InvalidField` where it asks for something that is not supported."""
    row = rows(names).get(field)
    if row is not None and row.neutral is not None and value is not None:
        _check_neutral(field, value, row)


def supported(names: Names) -> list[str]:
    """Return the names of a column that are worth suggesting."""
    return [name for name, row in rows(names).items() if row.neutral is None]


def parse_flag(field: str, value: Any) -> bool:
    """A flag that is false when it is not given. Raises `InvalidField`."""
    if value is None:
        return False
    if not isinstance(value, bool):
        raise refuse(field, value, Kind.FLAG.value)
    return value


def check(field: str, value: Any, row: Parameter) -> Any:
    """One value against its row; the value as the rest of the program wants it.

    Raises `InvalidField`.
    """
    if row.neutral is not None:
        return _check_neutral(field, value, row)
    if not _is_kind(value, row.kind):
        raise refuse(field, value, row.accepted())
    if row.kind in (Kind.INTEGER, Kind.NUMBER):
        if not _in_range(value, row):
            raise refuse(field, value, row.accepted())
        return float(value) if row.kind is Kind.NUMBER else value
    if row.choices and value not in row.choices:
        raise refuse(field, value, row.accepted())
    match row.kind:
        case Kind.TEXTS:
            return _check_texts(field, value, row)
        case Kind.IDS:
            return _check_ids(field, value if isinstance(value, list) else [value], row)
        case Kind.ID_LISTS:
            _check_number(field, value, row)
            return tuple(_check_sequence(f"{field}[{i}]", one) for i, one in enumerate(value))
        case Kind.SEQUENCE_BIAS:
            return _check_sequence_bias(field, value, row)
        case Kind.BIAS:
            return _check_bias(field, value, row)
    return value


def _is_one_of(value: Any, values: Iterable[Any]) -> bool:
    """In Python 1 == True, in JSON not."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)


def _check_neutral(field: str, value: Any, row: Parameter) -> Any:
    if _is_one_of(value, row.neutral or ()):
        return value
    accepted = [shown(neutral) for neutral in row.neutral or ()]
    raise InvalidField(
        field,
        f"given {shown(value)}, but {row.reason}; accepted: "
        + (" or ".join(accepted) if accepted else "null, or leave it out"),
    )


def _is_kind(value: Any, kind: Kind) -> bool:
    match kind:
        case Kind.INTEGER:
            return isinstance(value, int) and not isinstance(value, bool)
        case Kind.NUMBER:
            return isinstance(value, int | float) and not isinstance(value, bool)
        case Kind.FLAG:
            return isinstance(value, bool)
        case Kind.TEXT:
            return isinstance(value, str)
        case Kind.TEXTS:
            return isinstance(value, str) or (
                isinstance(value, list) and all(isinstance(one, str) for one in value)
            )
        case Kind.IDS:
            return isinstance(value, list) or _is_kind(value, Kind.INTEGER)
        case Kind.ID_LISTS | Kind.SEQUENCE_BIAS:
            return isinstance(value, list)
        case Kind.OBJECT | Kind.BIAS:
            return isinstance(value, dict)
        case Kind.ANY:
            return True


def _in_range(value: float, row: Parameter) -> bool:
    return (
        (row.minimum is None or value >= row.minimum)
        and (row.above is None or value > row.above)
        and (row.maximum is None or value <= row.maximum)
    )


def _check_texts(field: str, value: str | list[str], row: Parameter) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value)
    if row.max_items is not None and len(texts) > row.max_items:
        raise InvalidField(field, f"given {len(texts)} strings; accepted: {row.accepted()}")
    for text in texts:
        size = len(text.encode())
        if size == 0 or (row.max_bytes is not None and size > row.max_bytes):
            raise InvalidField(field, f"given {shown(text)} of {size} bytes; accepted: {row.accepted()}")
    return texts


def _check_number(field: str, value: Sequence[Any] | Mapping[str, Any], row: Parameter) -> None:
    if row.max_items is not None and len(value) > row.max_items:
        raise InvalidField(field, f"given {len(value)} entries; accepted: {row.accepted()}")


def _check_ids(field: str, value: list[Any], row: Parameter) -> tuple[int, ...]:
    """Whether the vocabulary has them is looked at where the model is known."""
    _check_number(field, value, row)
    return tuple(dict.fromkeys(_check_id(f"{field}[{index}]", one) for index, one in enumerate(value)))


def _check_id(field: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise refuse(field, value, "a token id, a whole number")
    return value


def _check_sequence(field: str, value: Any) -> tuple[int, ...]:
    """Token ids that stand for one piece of text."""
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_IDS_IN_A_LIST:
        raise refuse(field, value, f"a list of 1 to {_MAX_IDS_IN_A_LIST} token ids")
    return tuple(_check_id(f"{field}[{index}]", one) for index, one in enumerate(value))


def _check_sequence_bias(
    field: str, value: list[Any], row: Parameter
) -> tuple[tuple[tuple[int, ...], float], ...]:
    _check_number(field, value, row)
    pairs = []
    for index, pair in enumerate(value):
        if not isinstance(pair, list) or len(pair) != 2:
            raise refuse(f"{field}[{index}]", pair, "a list of token ids and a number, in a list")
        pairs.append(
            (_check_sequence(f"{field}[{index}][0]", pair[0]), _bias(f"{field}[{index}][1]", pair[1], row))
        )
    return tuple(pairs)


def _bias(field: str, value: Any, row: Parameter) -> float:
    if not _is_kind(value, Kind.NUMBER) or not _in_range(value, row):
        raise refuse(field, value, f"a number from {row.minimum:g} to {row.maximum:g}")
    return float(value)


def _check_bias(field: str, value: dict[str, Any], row: Parameter) -> tuple[tuple[int, float], ...]:
    _check_number(field, value, row)
    for name in value:
        if not _ID.fullmatch(name):
            raise refuse(
                field, name, "names that are token ids, whole numbers in digits without leading zeros"
            )
    return tuple((int(name), _bias(f"{field}.{name}", bias, row)) for name, bias in value.items())
