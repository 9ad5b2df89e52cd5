"""Progress of long operations, in logs and terminals."""

from __future__ import annotations

import io

from rich.console import Console

from container.progress import Bars, LogLines


def test_a_log_gets_a_line_at_the_start_and_after_each_quarter() -> None:
    log = io.StringIO()
    view = LogLines(log)
    view.start("converting")
    for done in range(1, 1001):
        view.update(done, 1000)
    view.finish()
    quarters = [f"converting: {percent} %" for percent in (25, 50, 75, 100)]
    assert log.getvalue().splitlines() == ["converting ...", *quarters]


def test_a_terminal_gets_a_bar_and_unwrapped_lines() -> None:
    screen = io.StringIO()
    view = Bars(Console(file=screen, force_terminal=True, width=60))
    view.start("converting v[int8]")
    view.update(3, 4)
    view.finish()
    view.say("x" * 100 + "[not markup]")
    assert "converting v[int8]" in screen.getvalue()
    assert "x" * 100 + "[not markup]" in screen.getvalue()
