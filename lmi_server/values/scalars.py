"""Value types for single values: texts, booleans, numbers and words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lmi_server.values.base import BadValueError, Scalar, is_integer
from lmi_server.values.nearest import nearest

_MAX_DIGITS = 19
"""Number of digits of the largest 64-bit integer."""
_MAX_FILE_NAME_BYTES = 255
"""Maximum length of a file name on every file system that may hold a model."""


@dataclass(frozen=True, slots=True)
class Text:
    """Any text. Trailing spaces are kept, because a folder or an S3 prefix may end in one."""

    accepted: str = "text"
    keep_trailing_blanks: ClassVar[bool] = True

    def from_text(self, text: str) -> Scalar:
        return text

    def from_json(self, value: Any) -> Scalar:
        if not isinstance(value, str):
            raise BadValueError("is not a string")
        return self.from_text(value)


@dataclass(frozen=True, slots=True)
class PathText(Text):
    """A path, or text that may be a path."""

    def from_text(self, text: str) -> Scalar:
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            raise BadValueError("contains half of a surrogate pair") from None
        if any(byte < 32 or byte == 127 for byte in encoded):
            raise BadValueError("contains a control character")
        if max(map(len, encoded.split(b"/"))) > _MAX_FILE_NAME_BYTES:
            raise BadValueError(f"contains a name of more than {_MAX_FILE_NAME_BYTES} bytes")
        return text


@dataclass(frozen=True, slots=True)
class Bool:
    """`true` or `false`, in any case. Java reads every other word as false; here other words are rejected."""

    accepted: ClassVar[str] = "true or false"
    keep_trailing_blanks: ClassVar[bool] = False

    def from_text(self, text: str) -> Scalar:
        if text.lower() not in ("true", "false"):
            raise BadValueError("is neither true nor false", nearest=nearest(text, ("true", "false")))
        return text.lower() == "true"

    def from_json(self, value: Any) -> Scalar:
        if not isinstance(value, bool):
            raise BadValueError("is neither true nor false")
        return value


@dataclass(frozen=True, slots=True)
class Int:
    """An integer within bounds, or one of the given words."""

    minimum: int
    maximum: int | None = None
    words: tuple[str, ...] = ()
    power_of_two: bool = False
    keep_trailing_blanks: ClassVar[bool] = False

    @property
    def accepted(self) -> str:
        what = "a power of two" if self.power_of_two else "an integer"
        bounds = f"from {self.minimum} to {self.maximum}"
        if self.maximum is None:
            bounds = f"of at least {self.minimum}"
        return " or ".join([f"{what} {bounds}", *self.words])

    def from_text(self, text: str) -> Scalar:
        if text.lower() in self.words:
            return text.lower()
        digits = text[1:] if text[:1] in ("+", "-") else text
        if not (digits.isascii() and digits.isdecimal()):
            raise BadValueError("is not an integer", nearest=nearest(text, self.words))
        if len(digits) > _MAX_DIGITS:
            raise BadValueError("is out of range")
        return self._check(int(text))

    def from_json(self, value: Any) -> Scalar:
        if not is_integer(value):
            raise BadValueError("is not an integer")
        return self._check(value)

    def _check(self, value: int) -> int:
        if value < self.minimum or (self.maximum is not None and value > self.maximum):
            raise BadValueError("is out of range")
        if self.power_of_two and value & (value - 1):
            raise BadValueError("is not a power of two", nearest=str(1 << (value.bit_length() - 1)))
        return value


@dataclass(frozen=True, slots=True)
class Float:
    """A finite number within bounds."""

    minimum: float
    maximum: float
    unit: str = ""
    exclude_minimum: bool = False
    """Whether the minimum itself is excluded."""
    keep_trailing_blanks: ClassVar[bool] = False

    @property
    def accepted(self) -> str:
        what = f"a number of {self.unit}" if self.unit else "a number"
        if self.exclude_minimum:
            return f"{what} above {self.minimum:g}, at most {self.maximum:g}"
        return f"{what} from {self.minimum:g} to {self.maximum:g}"

    def from_text(self, text: str) -> Scalar:
        try:
            value = float(text)
        except ValueError:
            raise BadValueError("is not a number") from None
        if not math.isfinite(value) or "_" in text:
            raise BadValueError("is not a finite number")
        return self._check(value)

    def from_json(self, value: Any) -> Scalar:
        if not isinstance(value, float) and not is_integer(value):
            raise BadValueError("is not a number")
        return self._check(value)

    def _check(self, value: float) -> float:
        if not self.minimum <= value <= self.maximum or (self.exclude_minimum and value == self.minimum):
            raise BadValueError("is out of range")
        return float(value)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a fixed set of words."""

    values: tuple[str, ...]
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Synonyms of accepted words, each with its word."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Words that LMI accepts and this server rejects, each with the reason."""
    any_case: bool = True
    keep_trailing_blanks: ClassVar[bool] = False

    @property
    def accepted(self) -> str:
        *head, last = self.values
        text = f"{', '.join(head)} or {last}" if head else last
        return f"{text} (also {', '.join(self.synonyms)})" if self.synonyms else text

    def from_text(self, text: str) -> Scalar:
        word = text.lower() if self.any_case else text
        word = self.synonyms.get(word, word)
        if word in self.values:
            return word
        if word in self.refused:
            raise BadValueError(f"is not supported: {self.refused[word]}")
        near = nearest(word, (*self.values, *self.synonyms))
        raise BadValueError("is not one of the accepted values", nearest=near)

    def from_json(self, value: Any) -> Scalar:
        if not isinstance(value, str):
            raise BadValueError("is not a string")
        return self.from_text(value)
