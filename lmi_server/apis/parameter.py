"""What one row of the table of request parameters says. The rows are in `parameters.py` and `parameters_known.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Kind(Enum):
    """The JSON type of a value, in words for people."""

    INTEGER = "a whole number"
    NUMBER = "a number"
    FLAG = "true or false"
    TEXT = "a string"
    TEXTS = "a string or a list of strings"
    IDS = "a token id or a list of token ids"
    ID_LISTS = "a list of lists of token ids"
    SEQUENCE_BIAS = "a list of pairs of a list of token ids and a number"
    BIAS = "an object of token ids, as strings, with numbers"
    OBJECT = "an object"
    ANY = "anything"


class Names(Enum):
    """Which column of names a body uses."""

    LMI = "lmi"
    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row. `None` (JSON null) always means 'not given'."""

    name: str
    """Key of the parsed value."""
    kind: Kind
    lmi: tuple[str, ...] = ()
    openai: tuple[str, ...] = ()
    """Both in chats and in completions."""
    chat: tuple[str, ...] = ()
    completions: tuple[str, ...] = ()
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    """Exclusive lower bound."""
    choices: tuple[str, ...] = ()
    max_items: int | None = None
    max_bytes: int | None = None
    """Length of a text, or of each of the texts, in UTF-8."""
    neutral: tuple[Any, ...] | None = None
    """Not None: the parameter is not supported, and only these values, which change nothing, are accepted."""
    reason: str = "this is not supported"
    """Why any other value is refused; the end of a sentence that starts with 'but'."""
    nothing: tuple[Any, ...] = ()
    """Values besides null that mean 'not given', of whichever type."""
    engine: str | None = None
    """The only engine that supports the parameter; with the other one its default is the only accepted value."""

    def names(self, names: Names) -> tuple[str, ...]:
        if names is Names.LMI:
            return self.lmi
        return self.openai + (self.chat if names is Names.CHAT else self.completions)

    def accepted(self) -> str:
        """Describe the accepted values, for an error text."""
        return " or ".join([self._range(), *map(json.dumps, self.nothing)])

    def _range(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        text = self.kind.value
        low = f"above {self.above:g}" if self.above is not None else ""
        if self.minimum is not None:
            low = f"at least {_figure(self.minimum)}"
        high = f"at most {_figure(self.maximum)}" if self.maximum is not None else ""
        bounds = " and ".join(part for part in (low, high) if part)
        if self.kind is Kind.TEXTS:
            bounds = f"at most {self.max_items} strings of 1 to {self.max_bytes} bytes each"
        elif self.kind in (Kind.IDS, Kind.ID_LISTS):
            bounds = f"at most {self.max_items} of them"
        elif self.kind in (Kind.BIAS, Kind.SEQUENCE_BIAS):
            bounds = f"at most {self.max_items} of them, each from {self.minimum:g} to {self.maximum:g}"
        elif self.max_bytes is not None:
            bounds = f"at most {self.max_bytes} bytes"
        return f"{text}, {bounds}" if bounds else text


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def both(*names: str) -> dict[str, Any]:
    """Arguments of a row that all dialects know by the same names, the first of which is its key."""
    return {"name": names[0], "lmi": names, "openai": names}


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a body said, checked, with the defaults of what it did not say."""

    values: Mapping[str, Any]
    given: Mapping[str, str]
    """Name of a parameter -> the name under which the body gave it."""
    unknown: tuple[str, ...] = field(default=())
    """Names that stand in no row; only where they are to be ignored."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]
