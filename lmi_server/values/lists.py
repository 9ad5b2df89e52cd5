"""Value types of request parameters that hold several values: texts, token ids and biases."""

from __future__ import annotations

import re
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, ClassVar

from lmi_server.values.base import BadValueError, is_integer
from lmi_server.values.scalars import Float
from lmi_server.values.show import as_json

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_SEQUENCE = 32
"""Token ids of one sequence."""

TokenSequence = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Texts:
    """A text or a list of texts; a tuple of them comes out."""

    max_items: int
    max_bytes: int
    """Of each text, in UTF-8."""

    @property
    def accepted(self) -> str:
        return f"a string or a list of at most {self.max_items} strings, each of 1 to {self.max_bytes} bytes"

    def from_json(self, value: Any) -> tuple[str, ...]:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise BadValueError("is no string and no list of strings")
        _check_number(texts, self.max_items, "strings")
        for text in texts:
            if not 1 <= (size := len(text.encode())) <= self.max_bytes:
                raise BadValueError("has the wrong size", given=f"{as_json(text)} of {size} bytes")
        return tuple(texts)


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A token id or a list of them. Whether the vocabulary has them is checked where the model is known."""

    max_items: int

    @property
    def accepted(self) -> str:
        return f"a token id or a list of token ids, at most {self.max_items}"

    def from_json(self, value: Any) -> TokenSequence:
        if is_integer(value):
            return (value,)
        if not isinstance(value, list):
            raise BadValueError("is no token id and no list of token ids")
        _check_number(value, self.max_items)
        return tuple(dict.fromkeys(_ids(value, "")))


@dataclass(frozen=True, slots=True)
class TokenIdLists:
    """A list of token sequences."""

    max_items: int

    @property
    def accepted(self) -> str:
        return f"a list of at most {self.max_items} lists of token ids"

    def from_json(self, value: Any) -> tuple[TokenSequence, ...]:
        if not isinstance(value, list):
            raise BadValueError("is not a list")
        _check_number(value, self.max_items)
        return tuple(_sequence(one, f"[{index}]") for index, one in enumerate(value))


@dataclass(frozen=True, slots=True)
class TokenBiases:
    """An object of token ids and numbers; pairs of the two come out."""

    max_items: int
    bias: Float

    @property
    def accepted(self) -> str:
        return f"an object of at most {self.max_items} token ids, as strings, each with {self.bias.accepted}"

    def from_json(self, value: Any) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict):
            raise BadValueError("is not an object")
        _check_number(value, self.max_items)
        for name in value:
            if not _TOKEN_ID.fullmatch(name):
                names = "names that are token ids, in digits without leading zeros"
                raise BadValueError("is no token id", given=as_json(name), accepted=names)
        return tuple((int(name), _bias(bias, f".{name}", self.bias)) for name, bias in value.items())


@dataclass(frozen=True, slots=True)
class SequenceBiases:
    """A list of pairs of a token sequence and a number."""

    max_items: int
    bias: Float

    @property
    def accepted(self) -> str:
        return (
            f"a list of at most {self.max_items} pairs, each of a list of token ids and {self.bias.accepted}"
        )

    def from_json(self, value: Any) -> tuple[tuple[TokenSequence, float], ...]:
        if not isinstance(value, list):
            raise BadValueError("is not a list")
        _check_number(value, self.max_items)
        return tuple(self._pair(pair, f"[{index}]") for index, pair in enumerate(value))

    def _pair(self, pair: Any, place: str) -> tuple[TokenSequence, float]:
        if not isinstance(pair, list) or len(pair) != 2:
            what = "a list of two: a list of token ids and a number"
            raise BadValueError("is no pair", place=place, given=as_json(pair), accepted=what)
        return _sequence(pair[0], f"{place}[0]"), _bias(pair[1], f"{place}[1]", self.bias)


@dataclass(frozen=True, slots=True)
class Object:
    """A JSON object that is not looked at."""

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


def _check_number(value: Sized, maximum: int, what: str = "entries") -> None:
    if len(value) > maximum:
        raise BadValueError("has too many", given=f"{len(value)} {what}")


def _ids(value: list[Any], place: str) -> TokenSequence:
    for index, one in enumerate(value):
        if not is_integer(one):
            at = f"{place}[{index}]"
            raise BadValueError(
                "is no token id", place=at, given=as_json(one), accepted="a token id, an integer"
            )
    return tuple(value)


def _sequence(value: Any, place: str) -> TokenSequence:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_SEQUENCE:
        accepted = f"a list of 1 to {_MAX_SEQUENCE} token ids"
        raise BadValueError("is no list of token ids", place=place, given=as_json(value), accepted=accepted)
    return _ids(value, place)


def _bias(value: Any, place: str, bias: Float) -> float:
    try:
        return float(bias.from_json(value))
    except BadValueError as error:
        raise BadValueError(
            error.reason, place=place, given=as_json(value), accepted=bias.accepted
        ) from error
