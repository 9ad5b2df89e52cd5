"""Progress of long operations, in logs and terminals."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest
from rich.console import Console

from container.lossy_output import lossy
from container.progress import Bars, LogLines, drop_unwritten


def unread_pipe() -> TextIO:
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


def full_disk() -> TextIO:
    return Path("/dev/full").open("w")


def test_a_log_gets_a_line_at_the_start_and_after_each_quarter() -> None:
    log = io.StringIO()
    view = LogLines(log)
    view.start("converting")
    for done in range(1, 1001):
        view.update(done, 1000)
    view.finish()
    quarters = [f"converting: {percent} %" for percent in (25, 50, 75, 100)]
    assert log.getvalue().splitlines() == ["converting ...", *quarters]


@pytest.mark.parametrize("open_stream", [unread_pipe, full_disk])
def test_lines_that_cannot_be_written_are_lost(open_stream: Callable[[], TextIO]) -> None:
    with open_stream() as stream:
        LogLines(stream).say("lost")
        drop_unwritten(stream)  # closing the stream would fail otherwise, like Python's exit


def test_a_terminal_gets_a_bar_and_unwrapped_lines() -> None:
    screen = io.StringIO()
    view = Bars(Console(file=screen, force_terminal=True, width=60))
    view.start("converting v[int8]")
    view.update(3, 4)
    view.finish()
    view.say("x" * 100 + "[not markup]")
    assert "converting v[int8]" in screen.getvalue()
    assert "x" * 100 + "[not markup]" in screen.getvalue()


def test_a_terminal_that_is_gone_is_no_error() -> None:
    with full_disk() as stream:
        view = Bars(Console(file=lossy(stream), force_terminal=True, width=60))
        view.say("lost")
        view.start("converting")
        view.update(1, 2)
        view.finish()
        view.say("lost too")
        drop_unwritten(stream)
