"""Render plots as SVG text for a page: drawn by matplotlib, colored by the page's CSS variables."""

from __future__ import annotations

import importlib.util
import io
import itertools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from container.errors import UserError

NUM_COLORS = 8
"""Number of CSS variables: `--c0` to `--c7` for configurations and `--r0` to `--r7` for requests."""
_NAMES = ("ink", "quiet", "rule", "card", "empty", "good", "bad")
_BOTTOM_PIXELS, _TOP_PIXELS, _RIGHT_PIXELS = 44, 6, 10
"""Margins around the axes."""
DASHES = ((), (7, 3), (2, 2), (9, 3, 2, 3))
_ROLES = {f"#0{index}0{index}0{index}": name for index, name in enumerate(_NAMES, start=1)}
INK, QUIET, RULE, CARD, EMPTY, GAIN, LOSS = _ROLES
"""Colors of text, secondary text, grid lines, background of plots, background of slots, improvements, losses."""
_CLUTTER = re.compile(
    r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>| xmlns(:\w+)?=\"[^\"]*\"",
    re.DOTALL,
)
_COLOR = re.compile(r"(?<=[: ])#0[1-7]0[0-7]0[0-7](?=[;\"])")


class NoPlots(UserError):
    """matplotlib is not installed."""


def require_matplotlib() -> None:
    """Check that matplotlib is installed. Raises NoPlots."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NoPlots(
            "plots need matplotlib, which is not installed; install it with: pip install matplotlib"
        )


def line_color(index: int) -> str:
    """Return the color of the configuration with this index, for use in a plot."""
    return f"#01000{index % NUM_COLORS}"


def request_color(number: int) -> str:
    """Return the color of the request with this number, for use in a plot."""
    return f"#02000{number % NUM_COLORS}"


def line_dashes(index: int) -> tuple[int, ...]:
    """Return the dash pattern of the configuration with this index, for readers who cannot distinguish colors."""
    return DASHES[(index + index // NUM_COLORS) % len(DASHES)]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot before it is drawn."""

    title: str
    caption: str
    """One sentence on how to read the plot."""
    draw: Callable[[Any], None]
    """Draws on matplotlib's axes."""
    height: float
    """CSS pixels."""
    left: float = 4.0
    """CSS pixels left of the axes, for labels."""
    share: float = 1.0
    """Share of the page's width on a wide screen."""
    configuration: str = ""
    """Name of the configuration that the plot shows; empty for a plot of several configurations."""


@dataclass(slots=True)
class SvgRenderer:
    """Renders the plots of one page, with ids that are unique on the page."""

    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def render(self, plot: Plot, width: float) -> str:
        """Draw a plot with matplotlib, which must be installed; width in CSS pixels."""
        import matplotlib
        from matplotlib.figure import Figure

        style = {
            "svg.fonttype": "none",  # text stays text, in the page's font
            "svg.hashsalt": "lmi",  # the same plot has the same bytes
            "text.parse_math": False,  # names may contain $
            "font.size": 12,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": RULE,
            "axes.labelcolor": QUIET,
            "axes.facecolor": "none",
            "axes.axisbelow": True,
            "text.color": INK,
            "xtick.color": RULE,
            "xtick.labelcolor": QUIET,
            "ytick.color": RULE,
            "ytick.labelcolor": QUIET,
            "grid.color": RULE,
            "grid.linewidth": 0.8,
        }
        # Ignore warnings about letters that matplotlib's font lacks: the browser's font has them.
        with matplotlib.rc_context(style), warnings.catch_warnings(action="ignore"):
            figure = Figure(figsize=(width / 72, plot.height / 72))
            figure.patch.set_visible(False)
            left, bottom, top = plot.left / width, _BOTTOM_PIXELS / plot.height, _TOP_PIXELS / plot.height
            plot.draw(figure.add_axes((left, bottom, 1 - left - _RIGHT_PIXELS / width, 1 - bottom - top)))
            file = io.StringIO()
            figure.savefig(file, format="svg")
        return self._for_page(file.getvalue(), plot)

    def _for_page(self, svg: str, plot: Plot) -> str:
        """Drop what a page does not need, make ids unique, and replace colors by CSS variables."""
        prefix = f"g{next(self._numbers)}-"
        svg = _CLUTTER.sub("", svg).strip()
        svg = re.sub(r'(?<= )id="', f'id="{prefix}', svg)
        svg = re.sub(r"url\(#", f"url(#{prefix}", svg)
        svg = re.sub(r' xlink:href="#', f' href="#{prefix}', svg)
        svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
        svg = _COLOR.sub(lambda match: _variable(match[0]), svg)
        return svg.replace("<svg", '<svg role="img"', 1)


def _variable(color: str) -> str:
    if color in _ROLES:
        return f"var(--{_ROLES[color]})"
    return f"var(--{'c' if color.startswith('#01') else 'r'}{color[-1]})"
