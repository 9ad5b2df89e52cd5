"""Protocols of value types, and the error for values they do not accept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

Scalar = str | int | float | bool


class BadValueError(ValueError):
    """A value that its type does not accept."""

    def __init__(
        self, reason: str, *, nearest: str = "", place: str = "", received: str = "", accepted: str = ""
    ) -> None:
        """Create the error.

        `reason`: a phrase such as 'is out of range'. `nearest`: the accepted word that was probably meant. `place`: the
        invalid part, such as `[2]`. `received` and `accepted` describe that part; if empty, the whole value and type.
        """
        super().__init__(reason)
        self.reason = reason
        self.nearest = nearest
        self.place = place
        self.received = received
        self.accepted = accepted


class JsonType(Protocol):
    """The type of a request parameter."""

    @property
    def accepted(self) -> str:
        """Description of the accepted values, for users."""

    def from_json(self, value: Any) -> Any:
        """Check a JSON value and return it in the program's own type. Raises `BadValueError`."""


class ValueType(JsonType, Protocol):
    """The type of an option. Values are read from text, or from JSON if the option can change while serving."""

    @property
    def keep_trailing_blanks(self) -> bool:
        """Whether trailing blanks are kept. Otherwise they are stripped with a warning."""

    def from_json(self, value: Any) -> Scalar:
        """Check a JSON value. Raises `BadValueError`."""

    def from_text(self, text: str) -> Scalar:
        """Parse a value from text. Raises `BadValueError`."""


def is_integer(value: Any) -> bool:
    """Return True if a JSON value is an integer. `True` is an integer in Python but not in JSON."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_one_of(value: Any, values: Iterable[Any]) -> bool:
    """Return True if a JSON value equals one of `values`. `1 == True` holds in Python but not in JSON."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)
