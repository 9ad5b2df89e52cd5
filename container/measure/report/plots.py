"""The plots of a report. Each function returns a `Plot`, which `container.measure.report.svg` renders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from container.measure.numbers import format_number, percent
from container.measure.report.slots import SlotSpan, SlotUse
from container.measure.report.svg import (
    CARD,
    EMPTY,
    GAIN,
    INK,
    LOSS,
    QUIET,
    RULE,
    Plot,
    line_color,
    line_dashes,
    request_color,
)

_MAX_POINTS = 200
"""Maximum points of a distribution's curve; more would not be visible."""
_WIDE_RATIO = 15.0
"""Ratio of the largest to the smallest value at which an axis becomes logarithmic."""
_BAR_PIXELS, _AXIS_PIXELS = 46, 52
_MAX_SLOTS = 64
_HALF_LABEL_INCHES = 0.22
_INVISIBLE = 1 / 1500
"""Share of the time axis up to which gaps are closed."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its range, and the values that it summarizes."""

    name: str
    index: int
    """Index of the configuration, which gives the color."""
    value: float
    low: float
    high: float
    values: tuple[float, ...] = ()


def bars(title: str, unit: str, bars: Sequence[Bar], caption: str) -> Plot:
    """Plot horizontal bars from 0, with the name above each."""

    def draw(ax: Any) -> None:
        for row, bar in enumerate(bars):
            ax.barh(row, bar.value, height=0.36, color=line_color(bar.index))
            ax.plot([bar.low, bar.high], [row, row], color=INK, linewidth=1.6, solid_capstyle="butt")
            ax.plot(
                bar.values,
                [row] * len(bar.values),
                "o",
                markersize=5,
                color=INK,
                markeredgewidth=0,
                alpha=0.7,
            )
            _label_above(ax, row - 0.22, bar.name, format_number(bar.value))
        ax.set_xlim(0, 1.04 * max(bar.high for bar in bars) or 1)
        _rows(ax, (len(bars) - 0.7, -0.75), unit)

    pixels = max(_BAR_PIXELS, min(80, 250 / len(bars)))
    return Plot(title, caption, draw, _AXIS_PIXELS + pixels * len(bars), share=1 / 2)


def ratios(title: str, groups: Mapping[str, Sequence[Bar]], caption: str) -> Plot:
    """Plot points with intervals and a line at 1, in groups with a heading each."""
    heading, row = 30, 20
    height = sum(heading + row * len(group) for group in groups.values())

    def draw(ax: Any) -> None:
        ends = [1.1]
        y = 0
        for name, group in groups.items():
            _label_above(ax, y + heading - 8, name, "")
            y += heading
            for bar in group:
                style = {"color": line_color(bar.index), "clip_on": False}
                ax.plot([bar.low, bar.high], [y, y], linewidth=3.5, solid_capstyle="round", **style)
                ax.plot([bar.value], [y], "o", markersize=8, markeredgewidth=0, **style)
                _label_above(ax, y + 5, "", f"{format_number(bar.value)}x")
                y += row
                ends += [bar.low, bar.high, 1 / bar.low, 1 / bar.high]
        ax.set_xlim(1 / max(ends) ** 1.35, max(ends) ** 1.35)
        _log_if_wide(ax.xaxis, max(ends) ** 2)
        ax.axvline(1, color=QUIET, linewidth=1.2)
        _rows(ax, (height, 0), "ratio to the first configuration")

    return Plot(title, caption, draw, _AXIS_PIXELS + height, share=1 / 2)


def _label_above(ax: Any, y: float, left: str, right: str) -> None:
    """Write texts above y at the ends of the axis. Long names fit, because they take no room beside the axis."""
    room = int(10 * ax.figure.get_figwidth()) - 9  # letters
    short = left if len(left) <= room else f"{left[: room // 2]}…{left[-(room // 2) :]}"
    at_edge = {"transform": ax.get_yaxis_transform(), "va": "bottom", "zorder": 4}
    behind = {"facecolor": CARD, "linewidth": 0, "pad": 1}
    if left:
        ax.text(0, y, short, ha="left", bbox=behind, **at_edge)
    if right:
        ax.text(1, y, right, ha="right", bbox=behind, weight="bold", **at_edge)


def _rows(ax: Any, limits: tuple[float, float], unit: str) -> None:
    ax.set_ylim(*limits)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")
    ax.set_xlabel(unit)


def _log_if_wide(axis: Any, ratio: float, least: float = 2.0) -> bool:
    """Make an axis logarithmic if the ratio of its ends is at least `least`, with ticks at 0.5, 1, 2 and so on."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if ratio < least:
        return False
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    ticks = (1.0, 2.0, 3.0, 5.0) if ratio < 20 else (1.0, 2.0, 5.0) if ratio < 200 else (1.0,)
    room = int(axis.axes.figure.get_figwidth())  # a label takes about 72 pixels
    axis.set_major_locator(LogLocator(subs=ticks, numticks=max(3, room)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _log_label(axis, value)))
    axis.set_minor_formatter(NullFormatter())
    return True


def _log_label(axis: Any, value: float) -> str:
    """Return the label of a tick; empty if it is so close to an end of an x axis that the picture would cut it."""
    low, high = axis.get_view_interval()
    place = math.log(value / low) / math.log(high / low)
    room = _HALF_LABEL_INCHES / axis.axes.figure.get_figwidth() if axis.axis_name == "x" else 0.0
    return f"{value:g}" if room <= place <= 1 - room else ""


def distribution(title: str, samples: Mapping[int, Sequence[float]], caption: str) -> Plot:
    """Plot cumulative distributions. samples: values in seconds, by index of the configuration."""

    def draw(ax: Any) -> None:
        curves = {index: _quantiles(values) for index, values in samples.items()}
        ends = [x for points in curves.values() for x in (points[0], points[-1])]
        scale, unit = (1000.0, "ms") if max(ends) < 1 else (1.0, "s")
        for index, points in curves.items():
            shares = [step / (len(points) - 1) for step in range(len(points))]
            ax.plot([scale * point for point in points], shares, **_line(index))
        ax.set_ylim(0, 1.01)
        ax.set_yticks([0, 0.5, 0.9, 1], ["0 %", "50 %", "90 %", ""])
        ax.grid()
        if _log_if_wide(ax.xaxis, max(ends) / max(min(ends), 1e-9), _WIDE_RATIO):
            unit += ", logarithmic"
        else:
            ax.set_xlim(left=0)
        ax.set_xlabel(unit)

    return Plot(title, caption, draw, 230, left=44, share=1 / 3)


def _line(index: int) -> dict[str, Any]:
    dashes = line_dashes(index)
    style = (0, [length / 2 for length in dashes]) if dashes else "-"
    return {"color": line_color(index), "linewidth": 2, "linestyle": style}


def _quantiles(values: Sequence[float]) -> list[float]:
    """Return the sorted values, thinned out to at most `_MAX_POINTS`; at least two."""
    ordered = sorted(values)
    count = min(max(2, len(ordered)), _MAX_POINTS)
    return [ordered[round(index * (len(ordered) - 1) / (count - 1))] for index in range(count)]


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The result of one load."""

    label: str
    throughput: float
    """Output tokens/s."""
    latency: float
    """Seconds."""


def load_curve(title: str, points: Sequence[LoadPoint], latency: str, caption: str) -> Plot:
    """Plot latency over throughput, with a point for each load."""
    speeds, latencies = [point.throughput for point in points], [point.latency for point in points]

    def draw(ax: Any) -> None:
        ax.plot(speeds, latencies, marker="o", markersize=6, **_line(0))
        for point in points:
            at = (point.throughput, point.latency)
            ax.annotate(point.label, at, (-4, 7), textcoords="offset points", ha="right", color=QUIET)
        if not _log_if_wide(ax.yaxis, max(latencies) / max(min(latencies), 1e-9), _WIDE_RATIO):
            ax.set_ylim(0, 1.12 * max(latencies))
        ax.set_xlim(0, 1.12 * max(speeds))
        ax.set_xlabel("output tokens/s")
        ax.set_ylabel(f"{latency}, s")
        ax.grid()

    return Plot(title, caption, draw, 320, left=56)


def waterfall(title: str, factors: Mapping[str, float], caption: str) -> Plot:
    """Plot factors by cause, which multiply up to the whole gain, on a logarithmic axis from 1."""

    def draw(ax: Any) -> None:
        before, ends = 1.0, [1.0]
        for row, (cause, factor) in enumerate(factors.items()):
            after = before * factor
            ax.barh(row, after - before, left=before, height=0.36, color=GAIN if after >= before else LOSS)
            ax.plot([after, after], [row, row + 1], color=QUIET, linewidth=1, linestyle=(0, (2, 2)))
            _label_above(ax, row - 0.22, cause, f"{format_number(factor)}x")
            before = after
            ends.append(after)
        ax.barh(len(factors), before - 1, left=1, height=0.36, color=QUIET)
        _label_above(ax, len(factors) - 0.22, "total", f"{format_number(before)}x")
        ax.set_xlim(min(ends) / 1.1, max(ends) * 1.1)
        _log_if_wide(ax.xaxis, max(ends) / min(ends))
        ax.axvline(1, color=QUIET, linewidth=1.2)
        _rows(ax, (len(factors) + 0.3, -0.75), "ratio to the baseline")

    return Plot(title, caption, draw, _AXIS_PIXELS + _BAR_PIXELS * (len(factors) + 1))


def slots(name: str, use: SlotUse, seconds: float, caption: str) -> Plot:
    """Plot slots as rows, time to the right and requests as colors. seconds: end of the time axis."""
    rows = min(use.num_slots, _MAX_SLOTS)

    def draw(ax: Any) -> None:
        ax.axhspan(-0.5, rows - 0.5, xmax=min(1.0, use.seconds / seconds), color=EMPTY, linewidth=0)
        seen = [span for span in use.spans if span.slot < rows and span.start < seconds]
        merged = _merged(seen, seconds * _INVISIBLE)
        for row in range(rows):
            for is_prefill in (False, True):
                mine = [span for span in merged if span.slot == row and span.is_prefill == is_prefill]
                boxes = [(span.start, span.end - span.start) for span in mine]
                colors = [request_color(span.request) for span in mine]
                ax.broken_barh(boxes, (row - 0.46, 0.92), facecolors=colors, linewidth=0)
                if is_prefill:
                    ax.broken_barh(boxes, (row - 0.46, 0.92), facecolors="black", alpha=0.4, linewidth=0)
        ax.set_xlim(0, seconds)
        ax.set_ylim(rows - 0.5, -0.5)
        ax.set_yticks([0, rows - 1], ["slot 1", str(rows)] if rows > 1 else ["slot 1", ""])
        ax.set_xlabel("s")
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        if use.seconds <= seconds < math.inf:
            ax.axvline(use.seconds, color=RULE, linewidth=1)

    title = f"{percent(use.waste)} of the slot time wasted, {format_number(use.seconds)} s"
    if use.seconds > seconds:
        title += f" (first {format_number(seconds)} s shown)"
    row_pixels = max(4.5, min(14.0, 260 / rows))
    return Plot(title, caption, draw, _AXIS_PIXELS + row_pixels * rows, left=44, configuration=name)


def _merged(spans: Sequence[SlotSpan], gap: float) -> list[SlotSpan]:
    """Join spans of one request and phase that are at most `gap` seconds apart."""
    merged: list[SlotSpan] = []
    for span in spans:
        last = merged[-1] if merged else None
        same = last and (last.slot, last.request, last.is_prefill) == (
            span.slot,
            span.request,
            span.is_prefill,
        )
        if last and same and span.start - last.end <= gap:
            merged[-1] = SlotSpan(span.slot, span.request, last.start, span.end, span.is_prefill)
        else:
            merged.append(span)
    return merged
