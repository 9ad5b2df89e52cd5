"""The text of a report: findings and sections, as Markdown here, as an HTML page in `container.measure.report`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from container.measure.output import Table, bullets


@dataclass(frozen=True, slots=True)
class Finding:
    """A result in words."""

    subject: str
    """Subject of the finding, such as a scenario and a measure."""
    sentence: str
    kind: Literal["difference", "same", "open", "failed"]
    """A difference, no difference, too few rounds for a verdict, or a failure."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its content. Text in backticks is code."""

    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    bullets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report, findings first."""

    title: str
    lead: str
    """Time and place of the measurement; may be empty."""
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]

    def markdown(self) -> str:
        parts = [f"# {self.title}", self.lead, "\n".join(bullets(self.findings))]
        for section in self.sections:
            parts += [f"## {section.title}", section.text]
            for table in section.tables:
                parts += [table.title and f"**{table.title}**", table.markdown()]
            parts.append("\n".join(bullets(section.bullets)))
        return "\n\n".join(filter(None, parts)) + "\n"


def failed_requests(num_failed: int, num_requests: int) -> tuple[Finding, ...]:
    """Return a finding if any request failed, else nothing."""
    if not num_failed:
        return ()
    sentence = (
        f"{num_failed} of {num_requests} requests failed. The figures cover only successful requests, so they may"
        " favor a configuration with failures."
    )
    return (Finding("failed requests", sentence, "failed"),)


def package_versions(versions: Mapping[str, str]) -> str:
    """Return the line of a report that lists the installed packages."""
    return f"versions: {', '.join(f'{name} {version}' for name, version in versions.items())}"
