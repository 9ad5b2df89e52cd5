"""How a comparison shows itself while it runs: a table that grows on a terminal, plain lines in a log."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from container.measure.compare.configurations import Arm
from container.measure.compare.numbers import number, seconds
from container.measure.compare.results import RoundResult
from container.measure.compare.run import Watcher
from container.progress import ProgressView


class View(Watcher, Protocol):
    """A watcher with a beginning and an end."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LogLines:
    """For logs: a line for each server and each round."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def doing(self, text: str, total: int = 0) -> None:
        """Said when it has ended."""

    def request_done(self) -> None:
        """Too much for a log."""

    def stay_ready(self, arm: Arm, seconds: float) -> None:
        self._say(f"{arm.name}: ready after {seconds:.1f} s")

    def round_done(self, result: RoundResult) -> None:
        cells = ", ".join(
            f"{title} {text}" for title, text in zip(_TITLES[3:], _cells(result)[3:], strict=True)
        )
        self._say(f"{result.configuration}: {result.scenario}, round {result.round}: {cells}")

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LiveTable:
    """For a terminal: the rounds so far, and below them what is done now."""

    def __init__(self, console: Console) -> None:
        self._lock = threading.Lock()
        self._table = Table(*_TITLES, title="rounds")
        for column in self._table.columns[2:]:
            column.justify = "right"
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._task: TaskID | None = None
        self._live = Live(Group(self._table, self._progress), console=console, refresh_per_second=4)

    def doing(self, text: str, total: int = 0) -> None:
        with self._lock:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(text, total=total or None)
        self._live.refresh()

    def request_done(self) -> None:
        with self._lock:
            if self._task is not None:
                self._progress.advance(self._task)

    def stay_ready(self, arm: Arm, seconds: float) -> None:
        """The table is for rounds."""

    def round_done(self, result: RoundResult) -> None:
        with self._lock:
            self._table.add_row(*_cells(result))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._live.stop()


class SaidOnce:
    """A view of progress that repeats no line."""

    def __init__(self, view: ProgressView) -> None:
        self._view = view
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._view.say(text)

    def start(self, title: str) -> None:
        self._view.start(title)

    def update(self, done: int, total: int) -> None:
        self._view.update(done, total)

    def finish(self) -> None:
        self._view.finish()


def view_for(stream: TextIO) -> View:
    """A table where `stream` is a terminal, else lines."""
    return LiveTable(Console(file=stream)) if stream.isatty() else LogLines(stream)


_TITLES = ("configuration", "scenario", "round", "tokens/s", "TTFT p50", "latency p90", "batch", "failed")


def _cells(result: RoundResult) -> tuple[str, ...]:
    figures = result.figures
    return (
        result.configuration,
        result.scenario,
        str(result.round),
        number(figures.output_tokens_per_second),
        seconds(figures.ttft.p50),
        seconds(figures.latency.p90),
        number(result.batches.mean) if result.batches else "-",
        str(figures.num_errors),
    )
