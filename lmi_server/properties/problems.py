"""Problems of a serving.properties file or an environment, in words that a person can act on."""

from __future__ import annotations

from dataclasses import dataclass

from lmi_server.values.show import one_line


@dataclass(frozen=True, slots=True)
class Source:
    """The place of a value: a line of a file, or an environment variable."""

    file: str = ""
    line: int | None = None
    """1-based; None for a file as a whole."""
    variable: str = ""

    def __str__(self) -> str:
        if self.variable:
            return f"environment variable {self.variable}"
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; as a warning, one that may surprise."""

    source: Source
    key: str
    """As the user wrote it; empty where a file as a whole is meant."""
    given: str
    """The value as the user wrote it; `***` where it may be a secret."""
    reason: str
    accepted: str = ""
    nearest: str = ""
    """The nearest known name or value."""

    @property
    def file(self) -> str:
        return self.source.file

    @property
    def line(self) -> int | None:
        return self.source.line

    def __str__(self) -> str:
        what = f"{self.key}={one_line(self.given)}: " if self.key else ""
        if self.source.variable:
            what = f"value {one_line(self.given)!r}: "
        text = f"{self.source}: {what}{self.reason}"
        if self.accepted:
            text += f"; accepted: {self.accepted}"
        if self.nearest:
            text += f"; did you mean {self.nearest}?"
        return text


class PropertiesError(Exception):
    """All problems of a file and its environment. `str(error)` has one line for each."""

    def __init__(self, problems: tuple[Problem, ...], warnings: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
        self.warnings = warnings
