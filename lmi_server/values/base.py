"""What a value type is, and how it refuses a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

Scalar = str | int | float | bool


class BadValueError(ValueError):
    """A value that its type does not accept."""

    def __init__(
        self, reason: str, *, nearest: str = "", place: str = "", given: str = "", accepted: str = ""
    ) -> None:
        """Say what is wrong.

        `reason`: a phrase such as 'is out of range'. `nearest`: the accepted word that may be meant. `place`: the part
        at fault, such as `[2]`. `given` and `accepted` describe that part; empty: the value and type as a whole.
        """
        super().__init__(reason)
        self.reason = reason
        self.nearest = nearest
        self.place = place
        self.given = given
        self.accepted = accepted


class JsonType(Protocol):
    """The type of a request parameter."""

    @property
    def accepted(self) -> str:
        """What is accepted, for people."""

    def from_json(self, value: Any) -> Any:
        """Check a JSON value and return it as the program uses it. Raises `BadValueError`."""


class ValueType(JsonType, Protocol):
    """The type of an option: read from a file's text, or from JSON where the option can change while serving."""

    @property
    def keeps_blanks(self) -> bool:
        """True where a trailing blank may be meant; else it is stripped with a warning."""

    def from_json(self, value: Any) -> Scalar:
        """Check a JSON value. Raises `BadValueError`."""

    def from_text(self, text: str) -> Scalar:
        """Read a value from text. Raises `BadValueError`."""


def is_integer(value: Any) -> bool:
    """Whether a JSON value is an integer. In Python `True` is one, in JSON it is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_one_of(value: Any, values: Iterable[Any]) -> bool:
    """Whether a JSON value equals one of `values`. In Python `1 == True`, in JSON they differ."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)
