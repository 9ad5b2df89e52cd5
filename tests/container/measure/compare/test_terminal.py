"""What is seen while a comparison runs."""

from __future__ import annotations

import io

from rich.console import Console

from container.measure.compare.scrape import BatchSizes
from container.measure.compare.terminal import LiveTable, LogLines, SaidOnce, View, view_for
from container.progress import LogLines as ProgressLines
from tests.container.measure.compare.made_up import make_arm, make_figures, make_round

RESULT = make_round("paged", 2, make_figures(123.0, 4.0), batches=BatchSizes(9, 3.5))


def play(view: View) -> None:
    with view:
        view.doing("paged: starting")
        view.stay_ready(make_arm("paged"), 1.25)
        view.doing("paged: round 2 of 3", 2)
        view.request_done()
        view.round_done(RESULT)


def test_a_log_has_a_line_for_each_server_and_each_round() -> None:
    stream = io.StringIO()
    play(view_for(stream))
    assert isinstance(view_for(stream), LogLines)
    assert stream.getvalue().splitlines() == [
        "paged: ready after 1.2 s",
        "paged: 8 tokens in, 4 out, round 2: tokens/s 123, TTFT p50 2.00 s, latency p90 4.00 s, batch 3.50, failed 0",
    ]


def test_a_terminal_shows_the_rounds_as_a_table_that_stays() -> None:
    stream = io.StringIO()
    play(LiveTable(Console(file=stream, force_terminal=True, width=120)))
    last = stream.getvalue()
    for needed in ("tokens/s", "paged", "123", "4.00 s", "round 2 of 3", "0/2"):
        assert needed in last, needed


def test_a_line_that_was_said_is_not_said_again() -> None:
    stream = io.StringIO()
    view = SaidOnce(ProgressLines(stream))
    for text in ("one", "two", "one"):
        view.say(text)
    view.start("work")
    view.update(1, 2)
    view.finish()
    assert stream.getvalue().splitlines() == ["one", "two", "work ...", "work: 50 %"]
