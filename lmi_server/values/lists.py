"""Value types of request parameters with several values: texts, token ids and biases."""

from __future__ import annotations

import re
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, ClassVar

from lmi_server.values.base import BadValueError, JsonType, is_integer
from lmi_server.values.scalars import Float
from lmi_server.values.show import as_json

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class BoundedText:
    """A non-empty text of limited size."""

    max_bytes: int
    """Maximum size in UTF-8 bytes."""

    @property
    def accepted(self) -> str:
        return f"a string of 1 to {self.max_bytes} bytes"

    def from_json(self, value: Any) -> str:
        if not isinstance(value, str):
            raise BadValueError("is not a string")
        if not 1 <= (size := len(value.encode())) <= self.max_bytes:
            raise BadValueError("has the wrong size", received=f"{as_json(value)} of {size} bytes")
        return value


@dataclass(frozen=True, slots=True)
class TokenId:
    """A token id. It is not checked against the vocabulary here, because the model is not known."""

    accepted: ClassVar[str] = "a token id"

    def from_json(self, value: Any) -> int:
        if not is_integer(value):
            raise BadValueError("is not a token id")
        return int(value)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of values of one type, returned as a tuple. With `allow_single`, a single value is accepted too."""

    item: JsonType
    max_items: int
    min_items: int = 0
    allow_single: bool = False
    plural: str = "items"

    @property
    def accepted(self) -> str:
        one = f"{self.item.accepted} or " if self.allow_single else ""
        number = (
            f"at most {self.max_items}" if self.min_items == 0 else f"{self.min_items} to {self.max_items}"
        )
        return f"{one}a list of {number} {self.plural}"

    def from_json(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, list):
            _check_number(value, self.min_items, self.max_items)
            return tuple(_check_part(f"[{index}]", one, self.item) for index, one in enumerate(value))
        if not self.allow_single:
            raise BadValueError("is not a list")
        return (self.item.from_json(value),)


@dataclass(frozen=True, slots=True)
class Pair:
    """A list of two values, each with its own type."""

    first: JsonType
    second: JsonType

    @property
    def accepted(self) -> str:
        return f"a list of two: {self.first.accepted}, and {self.second.accepted}"

    def from_json(self, value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list) or len(value) != 2:
            raise BadValueError("is not a list of two")
        return _check_part("[0]", value[0], self.first), _check_part("[1]", value[1], self.second)


@dataclass(frozen=True, slots=True)
class TokenBiases:
    """A JSON object that maps token ids to numbers, returned as pairs."""

    bias: Float
    max_items: int

    @property
    def accepted(self) -> str:
        return f"an object of at most {self.max_items} token ids, as strings, each with {self.bias.accepted}"

    def from_json(self, value: Any) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict):
            raise BadValueError("is not an object")
        _check_number(value, 0, self.max_items)
        for name in value:
            if not _TOKEN_ID.fullmatch(name):
                names = "names that are token ids, in digits without leading zeros"
                raise BadValueError("is not a token id", received=as_json(name), accepted=names)
        return tuple((int(name), _check_part(f".{name}", bias, self.bias)) for name, bias in value.items())


@dataclass(frozen=True, slots=True)
class Object:
    """A JSON object with unchecked contents."""

    accepted: ClassVar[str] = "an object"

    def from_json(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise BadValueError("is not an object")
        return value


@dataclass(frozen=True, slots=True)
class AnyJson:
    """Any JSON value."""

    accepted: ClassVar[str] = "anything"

    def from_json(self, value: Any) -> Any:
        return value


def token_ids(max_items: int, min_items: int = 0, *, allow_single: bool = False) -> ListOf:
    """Return the type for a list of token ids. With `allow_single`, a single token id is accepted too."""
    return ListOf(TokenId(), max_items, min_items, allow_single, "token ids")


def _check_number(value: Sized, minimum: int, maximum: int) -> None:
    if not minimum <= len(value) <= maximum:
        raise BadValueError("has the wrong length", received=f"{len(value)} entries")


def _check_part(place: str, value: Any, type: JsonType) -> Any:  # noqa: A002
    """Check a part of a value. An error includes the place of the part."""
    try:
        return type.from_json(value)
    except BadValueError as error:
        raise BadValueError(
            error.reason,
            nearest=error.nearest,
            place=place + error.place,
            received=error.received or as_json(value),
            accepted=error.accepted or type.accepted,
        ) from error
