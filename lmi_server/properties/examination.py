"""Result of reading a serving.properties file: values, problems, notes, and the configuration if it is valid."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lmi_server.config import LmiConfig
from lmi_server.properties.grammar import Entry
from lmi_server.properties.handler import HandlerFile, Supplies
from lmi_server.properties.option import OptionValue
from lmi_server.properties.problems import Problem, Source


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """An option with the value that the server will use."""

    key: str
    value: str
    """Value as it would be written in the file. Empty if it is decided later or by the request."""
    source: str
    """`file:line`, `environment variable X`, `inferred from ...` or `default`."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration, with the source of each value, warnings and notes."""

    config: LmiConfig
    values: tuple[EffectiveValue, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class Examination:
    """Result of `examine` for a file and its environment."""

    file: Path
    folder: Path
    entries: tuple[Entry, ...] = ()
    values: dict[str, OptionValue] = field(default_factory=dict)
    """Value that takes effect for each option, by option name."""
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    user_code: HandlerFile | None = None
    """User's Python file, whatever it supplies, or None."""
    has_invalid_handler: bool = False
    """Whether the user's file has a problem, so that the keys that it takes are unknown."""
    loaded: Loaded | None = None
    """Valid configuration, or None if there are problems."""

    @property
    def handler(self) -> HandlerFile | None:
        """User's file, if it supplies a handler."""
        code = self.user_code
        return code if code is not None and code.supplies is Supplies.HANDLER else None

    def file_problem(self, path: Path, reason: str) -> None:
        self.problems.append(Problem(Source(str(path)), "", "", reason))
