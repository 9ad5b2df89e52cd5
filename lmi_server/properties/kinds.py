"""The kinds of value that an option can have: text in, typed value out, or what would have been accepted."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

Scalar = str | int | float | bool


class BadValueError(ValueError):
    """The text is none of what is accepted. `reason` says why, `nearest` what may have been meant."""

    def __init__(self, reason: str, nearest: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.nearest = nearest


class Kind(Protocol):
    """One kind of value."""

    @property
    def accepted(self) -> str:
        """What is accepted, for people."""

    @property
    def keeps_blanks(self) -> bool:
        """True where a trailing blank could be meant and stays; False where it is stripped with a warning."""

    def parse(self, text: str) -> Scalar:
        """Raises: BadValueError."""


@dataclass(frozen=True, slots=True)
class Text:
    """Anything but nothing. Blanks stay: a folder or an S3 prefix may end in one."""

    accepted: str = "text"
    keeps_blanks: bool = True

    def parse(self, text: str) -> Scalar:
        return text


_LONGEST_NAME = 255
"""Bytes of a file's name, on every file system that a model may be on."""


@dataclass(frozen=True, slots=True)
class Place:
    """A path, or what may be one. Blanks stay, as in `Text`."""

    accepted: str
    keeps_blanks: bool = True

    def parse(self, text: str) -> Scalar:
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            raise BadValueError("holds half of a surrogate pair") from None
        if any(byte < 32 or byte == 127 for byte in encoded):
            raise BadValueError("holds a control character")
        if max(map(len, encoded.split(b"/"))) > _LONGEST_NAME:
            raise BadValueError(f"holds a name of more than {_LONGEST_NAME} bytes")
        return text


@dataclass(frozen=True, slots=True)
class Bool:
    """`true` or `false` in any case. Java reads all but `true` as false; here the rest is refused."""

    accepted: str = "true or false"
    keeps_blanks: bool = False

    def parse(self, text: str) -> Scalar:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise BadValueError("is neither true nor false", _nearest(lowered, ("true", "false")))
        return lowered == "true"


@dataclass(frozen=True, slots=True)
class Int:
    """A decimal integer between two bounds, or one of some words."""

    minimum: int
    maximum: int
    words: tuple[str, ...] = ()
    power_of_two: bool = False
    keeps_blanks: bool = False

    @property
    def accepted(self) -> str:
        what = "a power of two" if self.power_of_two else "an integer"
        return " or ".join([f"{what} from {self.minimum} to {self.maximum}", *self.words])

    def parse(self, text: str) -> Scalar:
        if text.lower() in self.words:
            return text.lower()
        digits = text[1:] if text[:1] in ("+", "-") else text
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
            raise BadValueError("is not an integer", _nearest(text.lower(), self.words))
        value = int(text)
        if not self.minimum <= value <= self.maximum:
            raise BadValueError("is out of range")
        if self.power_of_two and value & (value - 1):
            raise BadValueError("is not a power of two", str(1 << (value.bit_length() - 1)))
        return value


@dataclass(frozen=True, slots=True)
class Float:
    """A finite decimal number: more than `low`, or from it on, and at most `high`."""

    low: float
    high: float
    unit: str = ""
    includes_low: bool = False
    keeps_blanks: bool = False

    @property
    def accepted(self) -> str:
        what = f"a number of {self.unit}" if self.unit else "a number"
        return f"{what} {'from' if self.includes_low else 'above'} {self.low:g}, at most {self.high:g}"

    def parse(self, text: str) -> Scalar:
        try:
            value = float(text)
        except ValueError:
            raise BadValueError("is not a number") from None
        if not math.isfinite(value) or "_" in text:
            raise BadValueError("is not a finite number")
        if not self.low <= value <= self.high or (value == self.low and not self.includes_low):
            raise BadValueError("is out of range")
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words; other names of the same; words that LMI knows and that are refused, and why."""

    values: tuple[str, ...]
    synonyms: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    any_case: bool = True
    keeps_blanks: bool = False

    @property
    def accepted(self) -> str:
        *head, last = self.values
        text = f"{', '.join(head)} or {last}" if head else last
        return f"{text} (also {', '.join(self.synonyms)})" if self.synonyms else text

    def parse(self, text: str) -> Scalar:
        word = text.lower() if self.any_case else text
        word = self.synonyms.get(word, word)
        if word in self.values:
            return word
        if word in self.refused:
            raise BadValueError(f"is known to LMI but not done here: {self.refused[word]}")
        raise BadValueError(
            "is not one of the accepted values", _nearest(word, (*self.values, *self.synonyms))
        )


def _nearest(text: str, words: tuple[str, ...]) -> str:
    by_lowered = {word.lower(): word for word in words}
    found = difflib.get_close_matches(text.lower(), by_lowered, n=1, cutoff=0.6)
    return by_lowered[found[0]] if found else ""
