"""Problems in a serving.properties file or an environment, worded for the user."""

from __future__ import annotations

from dataclasses import dataclass

from lmi_server.values.show import one_line


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of a value: a line of a file, or an environment variable."""

    file: str = ""
    line: int | None = None
    """1-based line number; None for the file as a whole."""
    variable: str = ""

    def __str__(self) -> str:
        if self.variable:
            return f"environment variable {self.variable}"
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """An invalid setting or file. Warnings use the same class."""

    source: Source
    key: str
    """Key as the user wrote it. Empty if the problem concerns the file as a whole."""
    value: str
    """Value as the user wrote it, or `***` if it may be a secret."""
    reason: str
    accepted: str = ""
    nearest: str = ""
    """Nearest known name or value."""

    @property
    def line(self) -> int | None:
        return self.source.line

    def __str__(self) -> str:
        what = f"{self.key}={one_line(self.value)}: " if self.key else ""
        if self.source.variable:
            what = f"value {one_line(self.value)!r}: "
        text = f"{self.source}: {what}{self.reason}"
        if self.accepted:
            text += f"; accepted: {self.accepted}"
        if self.nearest:
            text += f"; did you mean {self.nearest}?"
        return text


class PropertiesError(Exception):
    """All problems in a file and its environment. `str(error)` has one line for each problem."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
