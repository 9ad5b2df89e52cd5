"""HTML reports of made-up results."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from container.measure.compare.attribution import PAGING, SCHEDULING
from container.measure.compare.summary import TOKENS_PER_SECOND, ratio
from container.measure.report import charts
from container.measure.report.charts import plots_by_section
from container.measure.report.page import write_html
from container.measure.report.plots import Bar, ratios
from container.measure.report.results import BadResults, read_results
from container.measure.report.svg import SvgRenderer
from tests.container.measure.compare.made_up import compare_speeds
from tests.container.measure.report.made_up import (
    SCENARIO,
    SPEEDS,
    document_of,
    made_up_outputs,
    made_up_steps,
    make_benchmark,
    make_document,
    make_search,
    write_trace,
)

_VOID = {"meta", "link", "br", "hr", "img", "input"}
EVIL = '<script>alert("1")</script> & $x^$'


class _ParsedPage(HTMLParser):
    """The parsed page: tags, attributes and texts in document order. Raises if tags do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.texts).split())


def write_page(document: dict[str, Any], folder: Path) -> tuple[str, _ParsedPage]:
    write_html(read_results(document), folder / "report.html")
    page = (folder / "report.html").read_text(encoding="utf-8")
    return page, _ParsedPage(page)


@pytest.fixture(scope="module")
def page_with_traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, _ParsedPage]:
    folder = tmp_path_factory.mktemp("page")
    document = make_document()
    for index, result in enumerate(document["rounds"][-3:]):
        steps = made_up_steps(made_up_outputs(), 4 * (index + 1), static=index == 0)
        result.update(started=99.0, ended=200.0, step_trace=write_trace(folder / f"{index}.jsonl", steps))
    return write_page(document, folder)


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_the_verdict_comes_first_followed_by_all_sections(page_with_traces: tuple[str, _ParsedPage]) -> None:
    page, parsed = page_with_traces
    assert headings(page) == [
        "Summary",
        SCENARIO,
        "Where the gain comes from",
        "The configurations",
        "What was run",
        "How to read the figures",
        "Caveats",
    ]
    assert parsed.words.index("rolling-8 is 3.32 times as fast as static-4") < parsed.words.index("Summary")
    # Bars, ratios, three distributions, slots of three configurations, one waterfall. Each is drawn in two widths.
    assert parsed.tags.count("figure") == parsed.tags.count("figcaption") == 9
    drawn = re.findall(r"<svg role.*?</svg>", page, re.DOTALL)
    assert len(drawn) == 18
    assert all(any(ratio in plot for plot in drawn) for ratio in ("3.32x", "1.04x"))
    for text in ("Abacus 9", "lmi compare a b", "torch 9.9", "2030-01-02", "of the slot time wasted"):
        assert text in parsed.words
    assert "Blank areas are waste" in parsed.words
    assert "<code>lmi check</code>" in page


def test_rendering_is_deterministic() -> None:
    plot = plots_by_section(read_results(make_document()))[SCENARIO][0]
    assert SvgRenderer().render(plot, 340) == SvgRenderer().render(plot, 340)


def test_the_page_has_all_content_of_the_markdown_report(page_with_traces: tuple[str, _ParsedPage]) -> None:
    _, parsed = page_with_traces
    results = read_results(make_document())
    for section in results.sections:
        texts = [section.text.replace("`", " "), *(text.replace("`", " ") for text in section.bullets)]
        cells = [cell for table in section.tables for row in (table.header, *table.rows) for cell in row]
        for text in (*texts, *cells, *(table.title for table in section.tables)):
            assert " ".join(text.split()).replace(" ", "") in parsed.words.replace(" ", "")


def test_names_are_escaped_everywhere(tmp_path: Path) -> None:
    page, parsed = write_page(make_document(names=("plain", EVIL)), tmp_path)
    assert "script" not in parsed.tags
    assert EVIL in parsed.words
    assert "<script" not in page


def test_the_page_loads_no_resources_and_its_ids_are_unique(
    page_with_traces: tuple[str, _ParsedPage],
) -> None:
    page, parsed = page_with_traces
    assert "default-src 'none'" in page
    loading = {"src", "href", "xlink:href", "data", "srcset", "action"}
    assert all(value.startswith("#") for name, value in parsed.attributes if name in loading)
    assert not re.search(r"@import|url\((?!#)|https?://", page)
    assert not {"script", "link", "iframe", "img", "object"} & set(parsed.tags)
    ids = [value for name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for used in re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", page):
        assert used in ids


def test_colors_are_css_variables_for_dark_mode(page_with_traces: tuple[str, _ParsedPage]) -> None:
    page, _ = page_with_traces
    body = page[page.index("<body>") :]
    assert not re.search(r"(fill|stroke): ?#", body)
    used = set(re.findall(r"var\((--\w+)\)", page))
    assert {"--c0", "--c1", "--c2", "--r0", "--ink", "--empty"} <= used
    style = page[: page.index("</style>")]
    assert all(f"{name}:" in style for name in used)


def test_results_of_an_earlier_version_are_refused() -> None:
    document = make_document()
    for key in ("title", "lead", "findings", "sections"):
        earlier = {name: value for name, value in document.items() if name != key}
        with pytest.raises(
            BadResults, match=rf"not the results of this version .*`{key}`.*again with --json"
        ):
            read_results(earlier)


def test_results_without_measurements_give_a_page_without_plots(tmp_path: Path) -> None:
    document = make_document()
    texts = {key: document[key] for key in ("title", "lead", "findings", "sections")}
    page, parsed = write_page(texts, tmp_path)
    assert "figure" not in parsed.tags
    assert SCENARIO in headings(page)


def test_each_scenario_has_its_own_plots() -> None:
    found = plots_by_section(read_results(make_document(scenarios=("low", "high"))))
    assert [(title, len(plots)) for title, plots in found.items()] == [
        ("low", 9),
        ("high", 9),
        ("Summary", 0),
    ]


def test_the_waterfall_has_the_parts_of_the_gain_without_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[dict[str, float]] = []
    monkeypatch.setattr(charts.plots, "waterfall", lambda title, factors, caption: drawn.append(factors))
    list(charts.attribution(read_results(make_document()), SCENARIO))
    ((scheduling, paging),) = [factors.items() for factors in drawn]
    assert (scheduling[0], paging[0]) == (SCHEDULING, PAGING)
    gain = SPEEDS["rolling-paged-8"] / SPEEDS["static-4"]
    assert scheduling[1] * paging[1] == pytest.approx(gain, rel=1e-3)


def test_the_ratios_are_those_of_throughput_first_token_time_per_token_and_latency(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[list[str]] = []
    monkeypatch.setattr(charts.plots, "ratios", lambda title, groups, caption: drawn.append([*groups]))
    list(charts.throughput(read_results(make_document()), SCENARIO))
    assert drawn == [
        ["output tokens/s", "time to first token p50", "time per output token p50", "latency p90"]
    ]


def test_an_unbounded_interval_can_be_drawn() -> None:
    speeds = {"a": (100.0, 100.0), "b": (1.0, 10_000.0), "c": (100.0, 100.0)}
    comparison = compare_speeds(speeds)
    unbounded = ratio(comparison, "b", "a", comparison.plan.scenarios[0].name, TOKENS_PER_SECOND)
    assert unbounded is not None
    assert unbounded.high == math.inf
    (plots, _) = plots_by_section(read_results(document_of(comparison))).values()
    (plot,) = [plot for plot in plots if plot.title == "Compared with a"]
    assert "1.00x" in SvgRenderer().render(plot, 600)


@pytest.mark.parametrize("width", [340, 538])
@pytest.mark.parametrize("ratio", [1.9, 90.0, 140.0, 166.6, 170.0, 500.0])
def test_no_label_of_a_logarithmic_axis_is_cut(width: int, ratio: float) -> None:
    plot = ratios("title", {"group": [Bar("a", 0, ratio, ratio, ratio)]}, "caption")
    svg = SvgRenderer().render(plot, width)
    labels = re.findall(r'text-anchor: middle[^>]* x="([0-9.]+)"[^>]*>([0-9.e+-]+)</text>', svg)
    assert labels
    for place, label in labels:
        half = 3.5 * len(label)
        assert half - 1 <= float(place) <= width + 1 - half, label


def test_the_page_of_a_benchmark_has_a_table_and_notes(tmp_path: Path) -> None:
    page, parsed = write_page(make_benchmark(), tmp_path)
    assert headings(page) == ["Figures"]
    assert ("class", "verdict") not in parsed.attributes
    for text in ("123.40 output tokens/s", "TTFT", "48 requests by 8 users", "lmi-server", "/models/tiny"):
        assert text in parsed.words
    _, failed = write_page(make_benchmark(num_failed=1), tmp_path)
    assert "1 of 2 requests failed" in failed.words


def test_a_rate_search_is_drawn_as_a_curve(tmp_path: Path) -> None:
    _, parsed = write_page(make_search(math.inf, 8.0, 2.0, 4.0, 6.0), tmp_path)
    assert "highest sustained rate" in parsed.words
    assert "6.00 requests/s" in parsed.words
    assert parsed.tags.count("figure") == 1
    assert "Throughput against latency" in parsed.words
    assert "2/s" in parsed.words
    _, single = write_page(make_search(8.0), tmp_path)
    assert "No rate is sustained." in single.words
    assert "figure" not in single.tags
