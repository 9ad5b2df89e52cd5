"""Progress of long tasks: a bar on a terminal, else a few log lines."""

from __future__ import annotations

import os
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from container.lossy_output import lossy


class ProgressView(Protocol):
    """Shows the progress of tasks, one at a time."""

    def say(self, text: str) -> None:
        """Print a line."""

    def start(self, title: str) -> None:
        """Start a task. Finishes the previous one."""

    def update(self, done: int, total: int, note: str = "") -> None:
        """Report that `done` of `total` parts of the current task are finished. note: figures so far."""

    def finish(self) -> None:
        """Finish the current task."""


class LogLines:
    """Progress in logs: a line at the start and at every quarter of a task. Lines that cannot be written are lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = lossy(stream)
        self._title = ""
        self._quarters = 0

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def start(self, title: str) -> None:
        self._title, self._quarters = title, 0
        self.say(f"{title} ...")

    def update(self, done: int, total: int, note: str = "") -> None:
        quarters = 4 * done // max(total, 1)
        if quarters > self._quarters:
            self._quarters = quarters
            self.say(f"{self._title}: {25 * quarters} %{note and f', {note}'}")

    def finish(self) -> None:
        self._title = ""


class Bars:
    """Progress bars on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def start(self, title: str) -> None:
        self.finish()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._console,
        )
        self._progress.add_task(title, total=None, note="")
        self._progress.start()

    def update(self, done: int, total: int, note: str = "") -> None:
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done, total=total, note=note)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def view_for(stream: TextIO) -> ProgressView:
    """Return bars if `stream` is a terminal, else log lines."""
    return Bars(Console(file=lossy(stream))) if stream.isatty() else LogLines(stream)


def drop_unwritten(stream: TextIO) -> None:
    """Redirect the stream to /dev/null if it cannot be written, because Python's exit code would become 120."""
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
