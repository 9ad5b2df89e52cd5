"""The value that counts for an option, and where it was written."""

from __future__ import annotations

from dataclasses import dataclass

from lmi_server.properties.option import Option
from lmi_server.properties.problems import Source
from lmi_server.values.base import Scalar


@dataclass(frozen=True, slots=True)
class OptionValue:
    """One option's value. As text: `key=value` as the user wrote it."""

    option: Option
    value: Scalar
    text: str
    source: Source
    written: str
    """The key as the user wrote it: an alias, perhaps."""

    @property
    def place(self) -> str:
        return str(self.source)

    def __str__(self) -> str:
        return f"{self.written}={self.text}"
