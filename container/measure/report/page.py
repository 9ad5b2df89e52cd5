"""Write a report as one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

from container.measure.report.charts import plots_by_section
from container.measure.report.results import Results
from container.measure.report.svg import NUM_COLORS, Plot, SvgRenderer, line_dashes, require_matplotlib

_WIDE_PIXELS, _NARROW_PIXELS = 1130, 340
_GAP_PIXELS = 27
"""Half the space between two plots side by side, with their frames."""


def write_html(results: Results, path: Path) -> None:
    """Write the results of `lmi compare`, `lmi bench` or `lmi simulate` as a page. Raises NoPlots, OSError."""
    require_matplotlib()
    svg = SvgRenderer()

    # Safe as markup, because matplotlib escapes the texts of its SVG.
    def wide(plot: Plot) -> Markup:
        width = _WIDE_PIXELS * plot.share - (2 * _GAP_PIXELS * (1 - plot.share))
        return Markup(svg.render(plot, width))  # noqa: S704

    def narrow(plot: Plot) -> Markup:
        return Markup(svg.render(plot, _NARROW_PIXELS))  # noqa: S704

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    page = templates.get_template("page.html.j2").render(
        report=results,
        plots=plots_by_section(results),
        places={name: place for place, name in enumerate(results.names)},
        num_colors=NUM_COLORS,
        dashes=line_dashes,
        wide=wide,
        narrow=narrow,
    )
    path.write_text(page, encoding="utf-8")
