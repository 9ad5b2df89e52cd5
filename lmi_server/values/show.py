"""Formatting of values for logs and error messages: bounded length, one line, no secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_MAX_JSON_CHARS = 80
_MAX_NAME_CHARS = 64
_SECRET = re.compile(
    r"(^|[._-])(token|secret|password|passwd|credentials?|api_?key|access_?key)$", re.IGNORECASE
)


def as_json(value: Any) -> str:
    """Return a value as JSON, cut to 80 characters. Only the part that is shown is serialized."""
    text = json.dumps(_abridge(value, iter(range(_MAX_JSON_CHARS))))
    return text if len(text) <= _MAX_JSON_CHARS else text[:_MAX_JSON_CHARS] + "..."


def as_option(value: object) -> str:
    """Return a value as it would be written in serving.properties."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def one_line(text: str, limit: int = 120) -> str:
    """Return a text as one printable line of at most `limit` characters."""
    flat = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return flat if len(flat) <= limit else f"{flat[:limit]}... ({len(text)} characters)"


def masked(key: str, text: str, secret: bool = False) -> str:
    """Return an option's value, or `***` if it may be a password or an access token."""
    return "***" if secret or _SECRET.search(key) else text


def without_secrets(address: str) -> str:
    """Return an address without its user name, password and query, which may be keys."""
    scheme, separator, rest = address.rpartition("://")
    plain, has_query, _ = rest.partition("?")
    return f"{scheme}{separator}{plain.rpartition('@')[2]}{has_query and '?...'}"


def few(names: Sequence[str], most: int, show: Callable[[str], str]) -> str:
    """Return the first `most` names, each formatted by `show`, and the number of the others."""
    text = ", ".join(map(show, names[:most]))
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def names_in_log(names: Sequence[str]) -> str:
    """Return the first few of the names that a client sent, each cut to 64 characters."""
    return few(names, 5, lambda name: ascii(name[:_MAX_NAME_CHARS]))


def _abridge(value: Any, places: Iterator[int]) -> Any:
    """Return a copy with only as many items as there are places, and only the start of each text."""
    match value:
        case str():
            return value[: _MAX_JSON_CHARS + 1]
        case list():
            return [_abridge(item, places) for _, item in zip(places, value, strict=False)]
        case dict():
            items = zip(places, value.items(), strict=False)
            return {name[: _MAX_JSON_CHARS + 1]: _abridge(item, places) for _, (name, item) in items}
    return value
