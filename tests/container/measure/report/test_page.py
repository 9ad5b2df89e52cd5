"""The page and the Markdown of a report, from made-up results."""

from __future__ import annotations

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from container.measure.report.page import render_markdown, write_html
from container.measure.report.sections import make_report
from container.measure.report.svg import NoPlots, SvgRenderer
from tests.container.measure.report.made_up import (
    made_up_outputs,
    made_up_steps,
    make_document,
    make_search,
    write_trace,
)

_VOID = {"meta", "link", "br", "hr", "img", "input"}
EVIL = '<script>alert("1")</script> & $x^$'


class _Page(HTMLParser):
    """Elements in their order; raises where tags do not match."""

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


def page_of(document: dict[str, Any], folder: Path) -> tuple[str, _Page]:
    write_html(document, folder / "report.html")
    page = (folder / "report.html").read_text(encoding="utf-8")
    return page, _Page(page)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, _Page]:
    """The page of `make_document()`, with step traces."""
    folder = tmp_path_factory.mktemp("plain")
    document = make_document()
    for place, one in enumerate(document["rounds"][-3:]):
        steps = made_up_steps(made_up_outputs(), 4 * (place + 1), static=place == 0)
        one.update(began=99.0, ended=200.0, step_trace=write_trace(folder / f"{place}.jsonl", steps))
    return page_of(document, folder)


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_the_verdict_comes_first_and_then_every_section(plain: tuple[str, _Page]) -> None:
    page, parsed = plain
    assert headings(page) == [
        "Summary",
        "Load: 32 tokens in, 24 out on average",
        "The configurations",
        "Limits of these figures",
        "What was run",
    ]
    assert parsed.words.index("rolling-8 is faster than the first by 231.7 %") < parsed.words.index("Summary")
    # Bars, ratios, three distributions, three configurations' slots, one waterfall: for two widths of screen.
    assert parsed.tags.count("figure") == parsed.tags.count("figcaption") == 9
    assert page.count("<svg role") == 18
    for said in ("Abacus 9", "lmi compare a b c", "torch 9.9.9", "2030-01-02", "of the slots' time wasted"):
        assert said in parsed.words
    assert "blank is waste" in parsed.words


def test_numbers_are_those_of_the_results(plain: tuple[str, _Page]) -> None:
    document, (_, parsed) = make_document(), plain
    for said in ("61.5", "3.32x (3.08 to 3.55)", "1.90x", "13.0 %", "1.00 GiB", "238 of 240", "75.0 %"):
        assert said in parsed.words
        assert said in render_markdown(document) or said == "1.90x"  # the factors of a plot


def test_names_are_escaped_everywhere(tmp_path: Path) -> None:
    page, parsed = page_of(make_document(names=("plain", EVIL)), tmp_path)
    assert "script" not in parsed.tags
    assert EVIL in parsed.words
    assert "<script" not in page


def test_the_page_loads_nothing_and_its_names_are_unique(plain: tuple[str, _Page]) -> None:
    page, parsed = plain
    assert "default-src 'none'" in page
    loading = {"src", "href", "xlink:href", "data", "srcset", "action"}
    assert all(value.startswith("#") for name, value in parsed.attributes if name in loading)
    assert not re.search(r"@import|url\((?!#)|https?://", page)
    assert not {"script", "link", "iframe", "img", "object"} & set(parsed.tags)
    ids = [value for name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for used in re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", page):
        assert used in ids


def test_colours_are_variables_so_that_dark_mode_has_its_own(plain: tuple[str, _Page]) -> None:
    page, _ = plain
    body = page[page.index("<body>") :]
    assert not re.search(r"(fill|stroke): ?#", body)
    used = set(re.findall(r"var\((--\w+)\)", page))
    assert {"--c0", "--c1", "--c2", "--r0", "--ink", "--empty"} <= used
    style = page[: page.index("</style>")]
    assert all(f"{name}:" in style for name in used)


@pytest.mark.parametrize(
    ("key", "lost"),
    [
        ("summary", "Summary"),
        ("configurations", "The configurations"),
        ("caveats", "Limits of these figures"),
        ("setting", None),
        ("plan", None),
        ("rounds", None),
        ("stays", None),
        ("attribution", None),
        ("sections", None),
    ],
)
def test_what_is_missing_leaves_out_its_section_only(key: str, lost: str | None) -> None:
    document = make_document()
    whole = [section.title for section in make_report(document).sections]
    del document[key]
    assert [section.title for section in make_report(document).sections] == [
        title for title in whole if title != lost
    ]


def test_an_empty_document_is_a_page_too(tmp_path: Path) -> None:
    _, parsed = page_of({}, tmp_path)
    assert "figure" not in parsed.tags
    assert render_markdown({}).startswith("# Results")


def test_several_loads_of_one_workload_give_a_curve_and_one_gives_none() -> None:
    document = make_document(scenarios=("low", "high"))
    for users, one in zip((2, 16), document["plan"]["scenarios"], strict=True):
        one.update(workload={"num_requests": 48}, arrivals={"num_users": users})
    (section,) = [one for one in make_report(document).sections if one.title == "Over load"]
    assert "16 users" in SvgRenderer().render(section.plots[0], 600)
    assert "Over load" not in [one.title for one in make_report(make_document()).sections]


def test_the_search_for_the_highest_rate_is_a_curve(tmp_path: Path) -> None:
    page, parsed = page_of(make_search(), tmp_path)
    assert "highest sustained rate" in parsed.words
    assert "6.00 requests/s" in parsed.words
    assert "Over load" in headings(page)
    assert "2/s" in parsed.words


def test_failed_requests_come_before_everything_else() -> None:
    document = make_document()
    document["rounds"][0]["figures"]["num_errors"] = 3
    (line,) = make_report(document).verdicts[0].lines
    assert (line.kind, line.sentence[:25]) == ("failed", "3 of 720 requests failed;")


def test_the_same_plot_has_the_same_bytes() -> None:
    plot = make_report(make_document()).sections[1].plots[0]
    assert SvgRenderer().render(plot, 340) == SvgRenderer().render(plot, 340)


def test_without_matplotlib_a_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoPlots, match="pip install matplotlib"):
        write_html(make_document(), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    assert render_markdown(make_document())
