"""Parse the bytes of a body to a JSON object that is safe to process.

Time and memory grow linearly with the body, the number of values is limited, and other requests continue while a large
body is parsed. `json.loads` alone would block every stream of the process for seconds.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, NoReturn

import gevent

from engines.errors import InvalidRequest
from lmi_server.values.show import as_json

MAX_DEPTH = 32
"""Maximum depth of nested lists and objects."""
MAX_VALUES = 500_000
"""Maximum number of values in a body, without the names in objects. 64 MiB of lists would take up to 3 GB."""
_VALUES_PER_TURN = 20_000
"""Number of values that are read before other greenlets run; takes a few milliseconds."""
_MAX_NUMBER_CHARS = 4300
"""Maximum number of characters of a float. Python has the same limit for the digits of an integer."""
_CHARS_PER_VALUE = 4
"""Number of characters of a number that count as another value: some floats take 0.1 microseconds per character."""
_MAX_BYTES_OF_FAST_INTEGERS = 2 * 1024 * 1024
"""Bodies up to this size take less than 0.1 s even if they consist of long integers, so no turns are counted."""
_PLAIN_TYPES = frozenset((int, float, bool, type(None)))
"""Types of values that need no check. Long lists of them, such as token ids, are skipped."""
_STRING_OR_VALUE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|(,|[\[{](?!\s*[\]}]))|[\[{]', re.DOTALL)
"""Strings, commas and opening brackets. The group matches what precedes a value: a bracket unless it is empty."""


def parse_object(data: bytes | bytearray) -> dict[str, Any]:
    """Parse the JSON object in the bytes of a body.

    Raises `InvalidRequest` if the body is not an object, is nested too deeply, or has too many values, a repeated name,
    a number that is not finite, or a string that is not valid Unicode.
    """
    if not data or data.isspace():
        raise InvalidRequest("body: empty; accepted: a JSON object")
    if data.startswith(codecs.BOM_UTF8):
        data = b" " * len(codecs.BOM_UTF8) + data[len(codecs.BOM_UTF8) :]  # keeps the offsets of errors
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"body: byte {error.start} (0x{data[error.start]:02x}) is not valid UTF-8; accepted: a JSON object in UTF-8"
        ) from error
    turns = _Turns()
    _check_number_of_values(data, turns)
    try:
        body = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=turns.parse_float,
            parse_int=turns.parse_int if len(data) > _MAX_BYTES_OF_FAST_INTEGERS else None,
            object_pairs_hook=turns.build_object,
        )
    except RecursionError as error:
        raise InvalidRequest(_too_deep()) from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"body: not valid JSON: {error.msg} at line {error.lineno} column {error.colno}; accepted: a JSON object"
        ) from error
    except ValueError as error:  # a number with thousands of digits
        raise InvalidRequest(f"body: not valid JSON: {error}; accepted: a JSON object") from error
    if not isinstance(body, dict):
        raise InvalidRequest(f"body: given {_type_name(body)}; accepted: a JSON object")
    _check_tree(body, turns)
    return body


class _Turns:
    """Lets other greenlets run after every `_VALUES_PER_TURN` values."""

    def __init__(self) -> None:
        self._num_values = 0

    def count(self, num_values: int) -> None:
        self._num_values += num_values
        if self._num_values >= _VALUES_PER_TURN:
            self._num_values = 0
            gevent.sleep(0)

    def parse_float(self, text: str) -> float:
        if len(text) > _MAX_NUMBER_CHARS:
            raise InvalidRequest(
                f"body: given a number of {len(text)} characters; accepted: at most {_MAX_NUMBER_CHARS}"
            )
        self.count(1 + len(text) // _CHARS_PER_VALUE)
        return float(text)

    def parse_int(self, text: str) -> int:
        if len(text) > 20:  # counting takes longer than parsing a short integer
            self.count(1 + len(text) // _CHARS_PER_VALUE)
        return int(text)

    def build_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return the pairs as an object. Raises `InvalidRequest` if a name is repeated."""
        self.count(len(pairs) + 1)
        result = dict(pairs)
        if len(result) != len(pairs):
            name = as_json(_first_repeated(pairs))
            raise InvalidRequest(f"body: duplicate name {name}; accepted: each name once")
        return result


def _check_number_of_values(data: bytes | bytearray, turns: _Turns) -> None:
    """Raise `InvalidRequest` if there are too many values. Few bodies need the exact count.

    Each list and object that is not empty has one value more than commas.
    """
    if sum(map(data.count, (b",", b"[", b"{"))) <= MAX_VALUES:
        return
    num_values = 0
    for match in _STRING_OR_VALUE.finditer(data):
        turns.count(1)
        num_values += match.lastindex is not None
        if num_values > MAX_VALUES:
            raise InvalidRequest(f"body: more than {MAX_VALUES} values; accepted: at most {MAX_VALUES}")


def _first_repeated(pairs: list[tuple[str, Any]]) -> str:
    """Return the first repeated name. At least one name must be repeated."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            break
        seen.add(name)
    return name


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"body: given the number {name}; accepted: finite numbers")


def _check_tree(body: dict[str, Any], turns: _Turns) -> None:
    """Check the depth, and that every string is valid Unicode: JSON escapes may encode half a surrogate pair."""
    level: list[Any] = [body]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidRequest(_too_deep())
        inner: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                for name in container:
                    _check_text(name)
            values = container.values() if isinstance(container, dict) else container
            if values is container and len(values) > 100 and _PLAIN_TYPES.issuperset(map(type, values)):
                turns.count(len(values))
                continue
            for value in values:
                turns.count(1)
                if isinstance(value, str):
                    _check_text(value)
                elif isinstance(value, dict | list):
                    inner.append(value)
        level = inner


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"body: a string contains the unpaired surrogate \\u{ord(text[error.start]):04x}; accepted: valid Unicode"
        ) from error


def _too_deep() -> str:
    return f"body: lists and objects are nested more than {MAX_DEPTH} deep; accepted: at most {MAX_DEPTH}"


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "something else")
