"""Write a report: one HTML file that needs nothing else, or Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from container.measure.report.sections import ReportSection, make_report
from container.measure.report.svg import NUM_COLOURS, Plot, SvgRenderer, line_dashes, require_matplotlib

_WIDE_PIXELS, _NARROW_PIXELS = 1130, 340
_GAP_PIXELS = 27
"""Half the space between two plots side by side, with their frames."""


def write_html(document: Mapping[str, Any], path: Path) -> None:
    """Write the results of `lmi compare` or `lmi bench` as a page. Raises NoPlots, OSError."""
    require_matplotlib()
    report = make_report(document)
    svg = SvgRenderer()

    # matplotlib escapes the texts of its SVG.
    def wide(plot: Plot) -> Markup:
        width = _WIDE_PIXELS * plot.share - (2 * _GAP_PIXELS * (1 - plot.share))
        return Markup(svg.render(plot, width))  # noqa: S704

    def narrow(plot: Plot) -> Markup:
        return Markup(svg.render(plot, _NARROW_PIXELS))  # noqa: S704

    page = _templates().get_template("page.html.j2")
    path.write_text(
        page.render(
            report=report,
            places={name: place for place, name in enumerate(report.configurations)},
            num_colours=NUM_COLOURS,
            dashes=line_dashes,
            wide=wide,
            narrow=narrow,
        ),
        encoding="utf-8",
    )


def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )


def render_markdown(document: Mapping[str, Any]) -> str:
    """The same report without its plots."""
    report = make_report(document)
    parts = [f"# {report.title}", report.lead]
    parts.append(
        "\n".join(f"- {one.subject}: {line.sentence}" for one in report.verdicts for line in one.lines)
    )
    for section in report.sections:
        parts += _markdown(section)
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(section: ReportSection) -> list[str]:
    tables = [
        text for table in section.tables for text in (table.title and f"**{table.title}**", table.markdown())
    ]
    bullets = "\n".join(f"- {text}" for text in section.bullets)
    body = [text for text in (*section.texts, *tables, bullets) if text]
    return [f"## {section.title}", *body] if body else []
